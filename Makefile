PYTHON ?= python3

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
DOCS_STAMP := $(VENV)/.docs-done
COMPILED := $(VENV)/.compiled
#: Bytecode is kept, whatever the environment says: each worker of the tests and each process that
#: they start would otherwise compile PyTorch anew. The first import writes it, so pip need not:
#: one process does so before the workers start, while types are checked.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

#: Files of tests that go through most of the core and of the command.
LOWEST := $(addprefix tests/test_,densities.py em.py mixture.py objectives.py schema.py schema_applied.py \
	imputer.py persistence.py runtime.py command.py table_files.py)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test bench docs package lowest fuzz lint format clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv with the pinned packages and mixtura itself (editable)

$(STAMP): pyproject.toml requirements-dev.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "error: mixtura needs Python 3.11 or newer, and '$(PYTHON)' is:" \
			"$$($(PYTHON) --version 2>&1). Try: make setup PYTHON=python3.11" >&2; \
		exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) -r requirements-dev.lock
	$(PIP) --no-build-isolation --no-deps -e .
	@touch $@

demo: $(STAMP)  ## run the demonstration
	$(BIN)/mixtura demo

test: $(STAMP)  ## lint, then run the tests
	@$(MAKE) --no-print-directory -j 2 lint $(COMPILED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

$(COMPILED): $(STAMP)
	@$(BIN)/python -m pytest --collect-only -qq >/dev/null 2>&1 || true  # the tests say what is wrong
	@touch $@

bench: $(STAMP)  ## measure speed beside other libraries, into docs/results/speed.md
	$(BIN)/python -m benchmarks.speed

docs: $(DOCS_STAMP)  ## build the documentation site, into docs/_build/html
	rm -rf docs/_build docs/auto_gallery docs/api
	OMP_NUM_THREADS=1 $(BIN)/sphinx-build -W --keep-going -q -j 2 docs docs/_build/html

$(DOCS_STAMP): $(STAMP) requirements-docs.lock
	$(PIP) -r requirements-docs.lock
	@touch $@

package: $(STAMP)  ## build the source archive and the wheel, into dist, and check them
	$(PIP) -r requirements-release.lock
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

lowest:  ## run the core of the tests on the lowest versions of what mixtura needs
	$(PYTHON) -m venv $(VENV)-lowest
	$(VENV)-lowest/bin/python -m pip install --quiet -r requirements-lowest.lock
	OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/src $(VENV)-lowest/bin/python -m pytest $(LOWEST)

fuzz: $(STAMP)  ## attack the estimators and model files at length, at random
	OMP_NUM_THREADS=1 MIXTURA_FUZZ=1000 $(BIN)/python -m pytest -n auto --maxprocesses 4 \
		tests/test_properties.py tests/test_damaged_files.py tests/test_sklearn.py \
		tests/test_sklearn_cross.py

lint: $(STAMP)  ## check style, formatting, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)  ## format the code and apply the safe fixes
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

clean:  ## remove caches and build outputs (.venv stays)
	rm -rf build dist docs/_build docs/auto_gallery docs/api .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +
