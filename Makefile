# `make serve` and `make test` set up all they need; the rest builds on them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint requirements.lock
JAX_CACHE := JAX_COMPILATION_CACHE_DIR=$(CURDIR)/.jax-cache JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1
PYTEST := $(JAX_CACHE) $(BIN)/python -m pytest
WORKERS ?= 2
# glibc reads this when a process starts; large batches are sent 10 % sooner from huge pages.
HUGE_PAGES := GLIBC_TUNABLES=glibc.malloc.hugetlb=1

.PHONY: serve demo test test-unit test-browser test-long bench bench-engine lint lock clean

serve: $(VENV)/.server  ## Start Flashdeck with SQLite and local vaults at http://127.0.0.1:8000
	$(HUGE_PAGES) $(BIN)/flashdeck serve

demo: $(VENV)/.dev  ## Fill a running server with real Gymnasium experience
	$(BIN)/flashdeck demo

test: test-unit test-browser  ## All tests (PostgreSQL too, where one answers)

test-unit: $(VENV)/.dev
	$(PYTEST) -n $(WORKERS) -m "not long and not browser" tests

test-browser: $(VENV)/.dev $(VENV)/.chromium
	$(PYTEST) -m "browser" tests/test_pages.py

test-long: $(VENV)/.dev  ## What takes minutes: crash loops, Flashbax's own suite, soak
	$(PYTEST) -m long tests

bench: $(VENV)/.dev  ## Ratios against peers, measured in one run
	$(BIN)/python -m benchmarks

BENCH ?= --quick
bench-engine: $(VENV)/.dev  ## The engine alone, and its cost by capacity; BENCH= takes its time
	$(BIN)/python -m benchmarks.engine $(BENCH)
	$(BIN)/python -m benchmarks.engine_peers $(BENCH)
	$(BIN)/python -m benchmarks.capacity $(BENCH) --plot

lint: $(VENV)/.dev
	$(BIN)/ruff check app fbxcore docs/examples tests benchmarks migrations

lock: $(VENV)/.dev  ## Pin what is installed: names and versions only
	$(BIN)/python -m pip freeze --exclude-editable > requirements.lock

clean:
	rm -rf $(VENV) .jax-cache .pytest_cache .ruff_cache .hypothesis dist

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.server: pyproject.toml requirements.lock | $(BIN)/python
	$(PIP) --editable '.[server,postgres]'
	touch $@

$(VENV)/.dev: pyproject.toml requirements.lock | $(BIN)/python
	$(PIP) --editable '.[dev]'
	touch $@ $(VENV)/.server

$(VENV)/.chromium: | $(BIN)/python
	test -x /usr/bin/chromium || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; }
	touch $@
