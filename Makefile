# Every target sets up what it needs: a virtual environment in $(VENV), and the model where one is run.
# The targets are the CI: .ci/run calls them in a fresh environment.

# The first Python of at least 3.11; name another with `make PYTHON=...`.
ifndef PYTHON
PYTHON := $(or $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
  $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done),python3)
endif
VENV ?= .venv
BIN := $(VENV)/bin
ENGINE := $(VENV)/.octavo-engine
DEV := $(VENV)/.octavo-dev
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check
SAYING := $(PYTHON) -P src/octavo/cli/waiting.py  # runs a command, and says that it goes on
MODEL := smollm2-135m
CORE := hatch_build.py $(wildcard src/octavo/core/*.py src/octavo/core/*.pxd)  # what is compiled

export TOKENIZERS_PARALLELISM ?= false
# In tests threads that wait sleep: spinning costs most of the time where others want the cores too.
test test-pure docs: export OMP_WAIT_POLICY ?= passive

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-pure lint types docs site bench wheels release-check pull format help-texts clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | awk -F'|' '{printf "make %-13s %s\n", $$1, $$2}'

demo: $(ENGINE)  ## set up, fetch the model once and let it chat, with the cache and without
	@$(BIN)/octavo demo

test: $(DEV) pull  ## all tests but those of the documentation
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest --ignore=tests/docs --numprocesses=auto --dist=loadfile

test-pure: $(DEV)  ## the tests of the cache again, its core run as Python source; no long traces
	@OCTAVO_PURE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest --hypothesis-profile=short \
	  --numprocesses=auto --dist=loadfile --ignore=tests/laws/test_traces.py tests/laws tests/cases \
	  $$(grep -lw Cache tests/unit/*.py | xargs grep -LE 'torch|onnx')

lint: $(DEV)  ## ruff: rules and format, the examples in README and docs too
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

types: $(DEV)  ## mypy --strict on the library
	@$(BIN)/mypy

docs: $(DEV) pull  ## run every example of README and docs, check that the quoted help texts are current
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/docs --numprocesses=auto

site: $(DEV)  ## build the documentation as a site in build/site; any warning is an error
	@$(BIN)/python docs/build_site.py build/site

bench: $(DEV) pull  ## run the benchmarks and print their results
	@for script in benchmarks/bench_*.py; do $(BIN)/python $$script || exit 1; done

wheels:  ## build the source distribution and both wheels in dist/
	@$(PYTHON) .ci/release.py build

release-check: wheels  ## install them in fresh environments, with and without a compiler, and try them
	@$(PYTHON) .ci/release.py check $(PYTHONS)

pull: $(ENGINE)  ## fetch the model into the user's cache folder (once)
	@$(BIN)/octavo pull $(MODEL) >/dev/null

format: $(DEV)  ## let ruff format and mend what it can
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

help-texts: $(DEV)  ## write what docs/ quotes and draws anew: help texts, figures, pictures, notebooks
	@$(BIN)/python docs/help_texts.py --write
	@$(BIN)/python docs/model_table.py --write
	@$(BIN)/python docs/performance.py --write
	@$(BIN)/python docs/draw_pictures.py --write
	@$(BIN)/python docs/run_notebooks.py --write

clean:  ## remove the environment and what the tools left
	rm -rf $(VENV) build dist src/octavo/core/__compiled__ .hypothesis .mypy_cache .pytest_cache .ruff_cache

# A stamp is younger than pyproject.toml when its extra is installed. The install compiles the core
# where a C compiler is, so it is done again when the core's source has changed.
$(ENGINE): pyproject.toml $(CORE)
	@test -e $@ || printf '%s\n' "Setting up $(VENV) with $(PYTHON), once: pip compiles octavo's core and installs PyTorch and" "transformers. A few minutes; 1.5 GB of disk, more where pip takes PyTorch's build for GPUs." >&2
	@test -x $(BIN)/pip || $(SAYING) "Making $(VENV)" $(PYTHON) -m venv $(VENV)
	@$(SAYING) "Installing octavo, PyTorch and transformers" $(PIP_INSTALL) --editable '.[engine]'
	@touch $@

$(DEV): pyproject.toml | $(ENGINE)
	@$(SAYING) "Installing what the tests need" $(PIP_INSTALL) --editable '.[engine,dev]'
	@touch $@
