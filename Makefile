# make test   a virtual environment in .venv with everything, then the tests
# make demo   the same environment, then the demonstration on the trained digits network
# make lint   format, lint and types
# make docs   the generated pages

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PYTEST_ARGS ?= -n auto
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: install test demo lint format docs clean

install: $(VENV)/installed

# xformers is installed without what it asks for: it pins an old torch, and its factory's Python code runs on a new one.
$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --prefer-binary -e '.[test]'
	$(BIN)/python -m pip install --quiet --no-deps xformers==0.0.28.post3
	touch $@

# One thread per worker: many small operations on two cores are slowed down by more.
test: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_ARGS)

demo: install
	$(BIN)/vitconv demo

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: install
	$(BIN)/python -m vitconv.cli.docs

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
