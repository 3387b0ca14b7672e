# Targets for people and for CI. Needs Python 3.10+ and make; everything else goes into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_STAMP := $(VENV)/.installed-bench

.DEFAULT_GOAL := help
.PHONY: help demo replay test upstream lint type format bench bench-all clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(STAMP) ## the three-day migration: three processes, one killed, one ledger
	$(BIN)/python examples/migration/demo.py

replay: $(STAMP) ## replay recorded conversations, folding, killing and resuming
	$(BIN)/python examples/replay.py

test: lint type $(STAMP) ## lint, types and all tests
	$(BIN)/python -m pytest -n 2 --dist loadgroup

upstream: $(STAMP) ## LangGraph's own tests on HandoffSaver; downloads them, takes minutes
	$(BIN)/python tools/upstream.py

lint: $(STAMP) ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: $(STAMP) ## mypy --strict on the package
	$(BIN)/mypy

format: $(STAMP) ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: $(BENCH_STAMP) ## measure against SqliteSaver, DeltaChannel and summarization
	$(BIN)/python bench/binding.py
	$(BIN)/python bench/react_loop.py

bench-all: $(BENCH_STAMP) ## every benchmark, into docs/benchmarks.md; takes an hour or more
	$(BIN)/python bench/report.py

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(STAMP)

$(BENCH_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[bench]'
	touch $(BENCH_STAMP)
