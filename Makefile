# Everything a newcomer needs: `make demo` to see it, `make test` to check it.
# Both make .venv if it is missing; after a change of pyproject.toml or constraints.txt they install again.

PYTHON ?= python3
BIN := .venv/bin
# The constraints pin a torch for which pip finds a CPU build; an unpinned torch draws several GB of CUDA.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint benchmark clean

demo: .venv/installed-demo
	$(BIN)/python docs/gallery/plot_outliers.py

test: lint
	$(BIN)/python -m pytest

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

benchmark: .venv/installed-dev
	$(BIN)/python benchmarks/loo_objective.py
	$(BIN)/python benchmarks/prediction.py

clean:
	rm -rf .venv build

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed-%: .venv/bin/python pyproject.toml constraints.txt
	$(INSTALL) --editable ".[$*]"
	touch $@
