# Each target sets up what it needs in .venv, inside the clone. PYTHON chooses the interpreter: make test PYTHON=python3.13
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# --rootdir=tests: pytest would import the root as a package by the name of the clone's folder, which may be no Python name.

.PHONY: test demo test-peers bench clean

test: $(VENV)/test.stamp $(VENV)/chromium.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -n 2 --rootdir=tests --ignore=tests/peers tests

demo: $(VENV)/demo.stamp
	$(BIN)/python -m tapejit demo

test-peers: $(VENV)/peers.stamp
	$(BIN)/python -m pytest -q -n 2 --rootdir=tests tests/peers

bench: $(VENV)/peers.stamp
	$(BIN)/python bench/eager.py
	$(BIN)/python bench/library.py
	$(BIN)/python bench/replay.py
	$(BIN)/python bench/pure.py
	$(BIN)/python bench/steps.py --peers torch
	$(BIN)/python bench/gpu.py

clean:
	rm -rf $(VENV) build dist tapejit.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo.stamp: pyproject.toml | $(BIN)/python
	$(PIP) -e .
	touch $@

# mypy does not follow editable installs: it finds the package through the link.
$(VENV)/test.stamp: pyproject.toml | $(BIN)/python
	$(PIP) -e '.[test]'
	mkdir -p $(VENV)/types && ln -sfn ../.. $(VENV)/types/tapejit
	touch $@

# Tried once. Where it cannot be installed, the tests of pages are skipped.
$(VENV)/chromium.stamp: | $(BIN)/python
	sh tests/chromium.sh
	touch $@

$(VENV)/peers.stamp: pyproject.toml $(VENV)/test.stamp
	$(PIP) -e '.[test,peers]'
	touch $@
