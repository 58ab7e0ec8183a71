# Every target sets up .venv when it is missing or older than what it was made from.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-ray lint bench results clean

demo: .venv/ready
	$(BIN)/unseen demo

test: .venv/ready
	$(BIN)/pytest -q -n auto

test-ray: .venv/ready
	$(BIN)/pytest -q -m ray

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/ready
	$(BIN)/python benchmarks/speed.py

results: .venv/ready
	$(BIN)/python benchmarks/results.py ../shared/clip-b16

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt 'torch' 'hatchling'
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[encode,export,video,plot,bench,serve,ray,dev]'
	touch $@

clean:
	rm -rf .venv build dist
