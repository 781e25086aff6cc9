# Each target sets up what it needs in .venv, inside the clone. PYTHON chooses the interpreter: make test PYTHON=python3.13
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# --rootdir=tests: pytest would import the root as a package by the name of the clone's folder, which may be no Python name.

.PHONY: help test quick demo test-peers bench clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 20

test: $(VENV)/test.stamp $(VENV)/chromium.stamp ## ruff, mypy and the tests: what a change has to pass
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -n 2 --rootdir=tests --ignore=tests/peers tests

quick: $(VENV)/test.stamp ## smoke tests: the public API and the layers, in seconds
	$(BIN)/ruff check --quiet .
	$(BIN)/python -m pytest -q --rootdir=tests tests/tracer/api/test_tiny.py tests/project/test_layers.py

demo: $(VENV)/demo.stamp ## two minutes: a character GPT, eagerly and compiled
	$(BIN)/python -m tapejit demo

test-peers: $(VENV)/peers.stamp ## compare with PyTorch
	$(BIN)/python -m pytest -q -n 2 --rootdir=tests tests/peers

bench: $(VENV)/peers.stamp ## measure: ops, replay, whole steps, beside PyTorch
	$(BIN)/python bench/eager.py
	$(BIN)/python bench/library.py
	$(BIN)/python bench/replay.py
	$(BIN)/python bench/pure.py
	$(BIN)/python bench/steps.py --peers torch
	$(BIN)/python bench/gpu.py

clean: ## remove .venv and caches
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
	sh tests/support/chromium.sh
	touch $@

$(VENV)/peers.stamp: pyproject.toml $(VENV)/test.stamp
	$(PIP) -e '.[test,peers]'
	touch $@
