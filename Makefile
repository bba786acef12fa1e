# make test   a virtual environment in .venv with everything, then the tests
# make demo   the same environment, then the trained digits network through three layouts, verified, in $(DEMO)
# make lint   format, lint and types
# make docs   the generated pages

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PYTEST_ARGS ?= -n auto
DEMO ?= build/demo
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: install test demo lint format docs clean

install: $(VENV)/installed

# xformers is installed without what it asks for: it pins an old torch, and its factory's Python code runs on a new one.
$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --prefer-binary -e '.[test]'
	$(BIN)/python -m pip install --quiet --no-deps xformers==0.0.28.post3
	$(BIN)/python -m compileall -q vitconv
	touch $@

# One thread per worker: many small operations on two cores are slowed down by more.
test: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_ARGS)

# The factory's norms have eps 1e-5, the digits were trained at 1e-6: the second verification is to find that (exit code 1).
demo: install
	rm -rf $(DEMO)
	$(BIN)/vitconv demo $(DEMO)
	OMP_NUM_THREADS=1 $(BIN)/vitconv verify timm:$(DEMO)/3-timm@$(DEMO)/3-timm transformers:$(DEMO)/2-hf-vit@$(DEMO)/2-hf-vit \
	  --precision fp32 --precision amp-bf16 --report $(DEMO)/transformers.html
	OMP_NUM_THREADS=1 $(BIN)/vitconv verify timm:$(DEMO)/3-timm@$(DEMO)/3-timm xformers:$(DEMO)/1-xformers/xformers.json@$(DEMO)/1-xformers \
	  --set-b image=8 --set-b patch=2 --set-b channels=1 --set-b classes=10 \
	  --precision fp32 --precision amp-bf16 --report $(DEMO)/xformers.html; test $$? = 1
	@echo "The reports: $(DEMO)/transformers.html (the same) and $(DEMO)/xformers.html (differs: eps)"

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
