# Every target sets up .venv when it is missing or older than what it was made from.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-ray lint hooks bench soak fuzz gpu results leaderboard paper clean

demo: .venv/ready
	$(BIN)/unseen demo

test: .venv/ready
	$(BIN)/pytest -q -n auto $(PYTEST)

test-ray: .venv/ready
	$(BIN)/pytest -q -m ray

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

hooks: .venv/ready
	$(BIN)/pre-commit install

bench: .venv/ready
	$(BIN)/python benchmarks/speed.py

SOAK_SECONDS ?= 600
soak: .venv/ready
	$(BIN)/python benchmarks/soak.py --seconds $(SOAK_SECONDS)

fuzz: .venv/ready
	$(BIN)/python benchmarks/fuzz.py

# on a machine with a GPU, with whatever Python has torch for CUDA there: PYTHON=...
gpu:
	PYTHON=$(PYTHON) benchmarks/on_gpu.sh results/gpu

results: .venv/ready
	$(BIN)/python benchmarks/results.py ../shared/clip-b16

leaderboard: .venv/ready
	$(BIN)/python benchmarks/leaderboard.py ../shared/clip-b16

paper: .venv/ready
	$(BIN)/unseen bench paper --features ../shared/clip-b16 -o results

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt 'torch' 'hatchling'
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[encode,export,heic,video,plot,bench,serve,ray,tables,dev]'
	touch $@

clean:
	rm -rf .venv build dist
