# Two commands for a newcomer: `make demo` and `make test`. Everything lives in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: demo test check docs bench chaos slow clean

demo: $(VENV)/.installed
	$(BIN)/proxdasa reproduce speedup --output results/speedup --overwrite

test: check
	$(BIN)/python -m pytest -m "not slow" --numprocesses 2

check: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Statistical studies that take minutes; not part of `make test`.
slow: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m slow

# The pages as a site, in site/; open site/index.html.
docs: $(VENV)/.installed-docs
	$(BIN)/mkdocs build --strict

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks.run

# Fifty runs whose processes are killed at random moments; some minutes.
chaos: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.chaos

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

clean:
	rm -rf $(VENV) results site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
