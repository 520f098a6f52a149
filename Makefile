# Everything a newcomer needs: `make demo` to see it, `make test` to test it. `make check` runs everything, as CI does.
# All make .venv if it is missing; after a change of pyproject.toml or constraints.txt they install again.

PYTHON ?= python3
BIN := .venv/bin
# The constraints pin a torch for which pip finds a CPU build; an unpinned torch draws several GB of CUDA.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

PYTEST := $(BIN)/python -m pytest --numprocesses=auto --maxprocesses=4

.PHONY: demo test check lint docs benchmark clean

demo: .venv/installed-demo
	$(BIN)/rcgp demo

# Each test runs on one thread; a worker takes about half a gigabyte.
test: lint
	$(PYTEST) -m "not slow"

# What takes longer: slow fits, killed Dask workers, Chromium, documentation, demo, a small part of the reproduction.
check: test docs demo
	$(PYTEST) -m slow
	$(BIN)/rcgp reproduce all --quick --output build/reproduction

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: .venv/installed-docs
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --builder html docs build/docs

benchmark: .venv/installed-dev
	$(BIN)/python benchmarks/loo_objective.py
	$(BIN)/python benchmarks/prediction.py
	$(BIN)/python benchmarks/estimator.py

clean:
	rm -rf .venv build docs/auto_gallery

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed-%: .venv/bin/python pyproject.toml paper/pyproject.toml constraints.txt
	$(INSTALL) --editable ".[$*]" $(if $(filter demo,$*),,--editable ./paper)
	touch $@
