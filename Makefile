# Two commands: `make fuzz` (the main job) and `make test`. Both create .venv when it is missing.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
.PHONY: fuzz test lint install

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt targets.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install -q --no-deps --ignore-requires-python -r targets.txt
	touch $@

fuzz: install
	$(BIN)/pagefault run --time 60s

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: install lint
	$(BIN)/python -m pytest properties -n 2
	$(BIN)/python -m pytest tests -n 2 --dist loadfile
