# Everything that a contributor types, and CI too (.ci/run calls `make test`).
# All of it happens in .venv; nothing is installed outside it.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-all lint docs clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*##/\1:/p' $(MAKEFILE_LIST) | awk -F': +' '{printf "make %-9s %s\n", $$1, $$2}'

venv: $(STAMP)  ## build .venv with all that the other targets need (PYTHON=python3.12 picks another)

# What the kernel library is made of.
NATIVE := CMakeLists.txt $(wildcard src/narrowgate/ops/*/*.cpp src/narrowgate/ops/*/*.h)

# Run again only when what is to be installed has changed, C++ included. The pip which came with an
# old Python knows neither editable installs from pyproject.toml nor extras that name extras.
$(STAMP): pyproject.toml constraints.txt $(NATIVE)
	@echo "== venv: $$($(PYTHON) --version) into $(VENV); this takes a minute or two"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "error: narrowgate needs Python 3.11 or newer"; echo; echo "hint: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip>=23.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[pilot,dev]'
	@$(BIN)/python -c 'from narrowgate import ops; r = ops.status()[0]; print(f"== ops: {r.version} ({r.why})")'
	@touch $@

demo: venv  ## pilot a small GPT and a small ResNet in 16 bits, print the verdicts; about six minutes
	$(BIN)/python examples/demo.py

lint: venv  ## style, types, and that the generated reference is up to date
	@echo "== ruff"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@echo "== mypy --strict"
	$(BIN)/mypy --strict
	@echo "== generated reference"
	$(BIN)/python tools/generate.py --mode check

test: lint  ## lint, then all tests but the slow sweeps and those for a GPU
	@echo "== tests"
	$(BIN)/python -m pytest -m "not slow and not gpu"

test-all: lint  ## the slow sweeps too, and the GPU's where there is one
	@echo "== all tests"
	$(BIN)/python -m pytest

docs: venv  ## write the generated reference and build the pages into site/
	$(BIN)/python tools/generate.py --mode write
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site
	@echo "open site/index.html"

clean:  ## remove what was built, but not .venv
	rm -rf build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
