# Each target that needs .venv makes it first, when it is missing or stale.
.DEFAULT_GOAL := help
.PHONY: help venv demo test check format bench chaos lock clean

BIN := .venv/bin
# The first Python on the PATH that is new enough; `make PYTHON=/path/to/python` chooses another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
# loadscope keeps a module's tests on one worker, so that they share its nats-server. More workers
# than cores, since tests of a whole yard mostly wait; these come first (tests/conftest.py).
WORKERS ?= $$(( $$(nproc) * 3 / 2 ))
PYTEST ?= -n $(WORKERS) --maxprocesses 8 --dist loadscope --no-loadscope-reorder

help:
	@echo 'make demo    run jobs on a yard of this machine'
	@echo 'make test    all tests; as root it installs and starts a Docker engine where none answers'
	@echo 'make check   formatting, lint, types, imports between modules'
	@echo 'make format  format the code and sort its imports'
	@echo 'make bench   all benchmarks'
	@echo 'make chaos   a yard under faults at random: MINUTES=3 SEED=1'
	@echo 'make venv    only the environment, in .venv'
	@echo 'make lock    pin the dependencies anew in requirements.lock'
	@echo 'make clean   remove what these made'

venv: .venv/ready

# The stamp is as old as the last install, so only a changed pyproject.toml or lock installs again.
.venv/ready: pyproject.toml requirements.lock
	@test -n '$(PYTHON)' || { \
		echo 'no Python 3.11 or newer: apt-get install python3 python3-venv' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) has no venv module: apt-get install python3-venv" >&2; exit 1; }
	@echo 'making .venv with $(PYTHON), which takes one to two minutes'
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	@$(BIN)/pip install --disable-pip-version-check --quiet --require-hashes -r requirements.lock
	@$(BIN)/pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e .
	@touch $@

demo: .venv/ready
	@scripts/demo.sh

test: .venv/ready
	@scripts/test-engine.sh
	$(BIN)/python -m pytest $(PYTEST)

check: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/generate_reference.py --check

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --select I --fix .

bench: .venv/ready
	$(BIN)/python -m benchmarks

MINUTES ?= 3
SEED ?= 1
chaos: .venv/ready
	$(BIN)/python -m tests.system.chaos --minutes $(MINUTES) --seed $(SEED)

# Everything of [all,dev] for Python 3.11 and newer. uv is needed for nothing else, so it gets an
# environment of its own.
lock:
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && \
	$(PYTHON) -m venv "$$tmp" && "$$tmp/bin/pip" install --quiet uv && \
	"$$tmp/bin/uv" pip compile pyproject.toml --extra all --extra dev --universal \
		--python-version 3.11 --generate-hashes --no-annotate --no-emit-index-url --no-header \
		--upgrade --quiet -o requirements.lock

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
