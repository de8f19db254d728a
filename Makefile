# Two commands for a newcomer: `make demo` and `make test`. Everything is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OLDEST := .venv-oldest
# At least one test file for each library that has a floor.
OLDEST_TESTS := test_checkpoints.py test_cli.py test_csv_parquet.py test_data.py test_figures.py test_mixing.py \
	test_network_files.py test_networks.py test_records.py test_regularizers.py test_site_keys.py test_site_security.py \
	test_watching.py
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

# Tests start many interpreters; without bytecode files each of them would compile the package again.
suite quick slow oldest: export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test suite quick check docs bench chaos soak slow dist oldest clean

demo: $(VENV)/.installed
	$(BIN)/proxdasa reproduce speedup --output results/speedup --overwrite

# mypy takes half a minute of one core in a fresh clone, so it runs beside the tests.
test: $(VENV)/.installed-test
	$(MAKE) --no-print-directory --jobs 2 check suite

# Four workers keep two cores busy while some tests wait for processes (`deal` in tests/conftest.py).
suite: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m "not slow" --numprocesses 4 --dist worksteal

# For the inner loop, well under 40 seconds on two idle cores: no tests with processes, figures, pages or training, and
# fewer examples of each law.
quick: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m "not slow" --quick --hypothesis-profile few --numprocesses 2 --dist worksteal --quiet

check: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Statistical studies, further combinations of what `make test` covers, and laws on more examples; takes minutes.
slow: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m "slow or hypothesis" --hypothesis-profile many --numprocesses 2 --dist worksteal

# The documentation as a site; open site/index.html.
docs: $(VENV)/.installed-docs
	$(BIN)/mkdocs build --strict

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks.run

# Fifty runs whose processes are killed at random moments; takes some minutes.
chaos: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.chaos

# Sites of a study with a fault every few seconds; takes an hour, or as long as MINUTES says.
MINUTES ?= 60
soak: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.soak --minutes $(MINUTES)

# The wheel and the sdist, in dist/.
dist: $(VENV)/.installed-dist
	rm -rf dist
	$(BIN)/python -m build --no-isolation

# Part of the suite with the oldest libraries that pyproject.toml allows; takes some minutes.
oldest: $(OLDEST)/.installed
	$(OLDEST)/bin/python -m pytest -m "not slow" --numprocesses 2 $(addprefix tests/,$(OLDEST_TESTS))

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt
	@echo "installing into $(VENV) (PyTorch is the large part) ..."
	$(PIP) --editable .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@echo "installing the test extras ..."
	$(PIP) --editable ".[test]"
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP) --editable ".[docs]"
	touch $@

$(VENV)/.installed-dist: $(VENV)/.created pyproject.toml constraints.txt
	$(PIP) build setuptools
	touch $@

$(OLDEST)/.installed: pyproject.toml constraints.txt tests/oldest.py
	$(PYTHON) -m venv --clear $(OLDEST)
	$(PYTHON) tests/oldest.py > $(OLDEST)/constraints.txt
	@echo "installing into $(OLDEST) ..."
	$(OLDEST)/bin/python -m pip --disable-pip-version-check install --quiet --constraint $(OLDEST)/constraints.txt \
		--editable ".[data,frames,mpi,parquet,sites,tensorboard,weights]" \
		hypothesis mpich pyproximal pytest pytest-xdist setuptools
	touch $@

clean:
	rm -rf $(VENV) $(OLDEST) results site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
