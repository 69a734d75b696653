# Each target installs what it needs into a virtual environment inside the checkout.
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help demo test test-slow test-hostile interop fuzz soak check coverage bench bench-quick bench-budget bench-attacks format clean

help:
	@echo 'make demo          the main job, on this machine, in under a minute'
	@echo 'make test          run all tests but the slow ones; ARGS="tests/test_errors.py -k exit" runs a few'
	@echo 'make test-slow     run the tests that need many seconds of real time'
	@echo 'make test-hostile  run the tests in an unusual environment; ARGS as for make test'
	@echo 'make interop       run the clients of other SDKs against the gateway; ARGS="-k python" runs a few'
	@echo 'make fuzz          send random input to parsers, listeners and the core for ten minutes, or FUZZ_MINUTES'
	@echo 'make soak          cut connections and kill gateways at random for a minute, or SOAK_SECONDS'
	@echo 'make check         check format, lint, types and layers; run the wheel in an empty environment'
	@echo 'make coverage      check that the tests of the core reach each of its branches'
	@echo 'make bench         measure the gateway beside its alternatives, in a quarter of an hour'
	@echo 'make bench-quick   measure the same in about a minute'
	@echo 'make bench-budget  measure the cost of one message, step by step'
	@echo 'make bench-attacks measure what attacks cost a working client'
	@echo 'make format        rewrite the code in the format that make check wants'
	@echo 'make clean         remove the virtual environment and all build output'

$(VENV)/bin/python:
	tools/make_venv $(VENV)

$(VENV)/has-%: $(VENV)/bin/python pyproject.toml
	$(PIP) --editable '.$(if $(filter run,$*),,[$*])'
	@touch $@

# Not an extra of the package: users who install the program do not need it.
$(VENV)/has-bench: $(VENV)/has-run benchmarks/requirements.txt
	$(PIP) --requirement benchmarks/requirements.txt
	@touch $@

demo: $(VENV)/has-run
	@$(BIN)/python examples/demo.py

# ARGS are pytest's: files, names of tests, options. Without them two processes share the files of the whole suite.
# The bytecode of the tests is kept, whatever the environment says: compiling them takes longer than many of them run.
test: $(VENV)/has-test
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q $(if $(ARGS),$(ARGS),-n 2 --dist loadfile)

test-slow: $(VENV)/has-test
	$(BIN)/python -m pytest -q -m slow

test-hostile: $(VENV)/has-test
	tools/hostile $(BIN)/python -q $(if $(ARGS),$(ARGS),-n 2 --dist loadfile)

# Apart from the test extra: packages from npm, and the Python SDK with its own tests.
INTEROP := $(VENV)/interop
NEEDS_NODE := make interop needs Node.js 20 or newer with npm, in Debian: apt-get install nodejs npm

$(INTEROP)/installed: $(VENV)/has-test tests/interop/package.json tests/interop/package-lock.json tests/interop/requirements.txt
	@{ command -v node && command -v npm; } >/dev/null || { echo '$(NEEDS_NODE)' >&2; exit 1; }
	rm -rf $(INTEROP)
	mkdir -p $(INTEROP)
	cp tests/interop/package.json tests/interop/package-lock.json $(INTEROP)
	npm ci --prefix $(INTEROP) --ignore-scripts --no-audit --no-fund --silent
	$(PIP) --no-deps --target $(INTEROP)/python --requirement tests/interop/requirements.txt
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --dest $(INTEROP) \
		$$(grep '^agent-client-protocol==' tests/interop/requirements.txt)
	tar -xzf $(INTEROP)/agent_client_protocol-*.tar.gz -C $(INTEROP)
	@touch $@

interop: $(INTEROP)/installed
	$(BIN)/python -m pytest -q -m interop tests/interop $(ARGS)

# Prints the seed of each failure, which repeats it.
fuzz: $(VENV)/has-test
	@$(BIN)/python -m tests.fuzz.rounds

# SOAK_SEED, as printed, repeats a run.
SOAK_SECONDS ?= 60
soak: $(VENV)/has-test
	@$(BIN)/python -m tests.end_to_end.soak $(SOAK_SECONDS) $(SOAK_SEED)

check: $(VENV)/has-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/check_prose
	tools/check_wheel $(BIN)/python

# What decides, without I/O.
PURE := acp_gateway/core/*,acp_gateway/protocol/*,acp_gateway/client/editor_state.py,acp_gateway/client/recovery.py,acp_gateway/client/positions.py,acp_gateway/client/reopening.py

coverage: $(VENV)/has-dev
	$(BIN)/coverage run --branch --include "$(PURE)" -m pytest -q tests/core tests/protocol tests/client/test_editor_state.py tests/client/test_recovery.py \
		tests/client/test_positions.py tests/client/test_reopening.py
	$(BIN)/coverage report --show-missing --fail-under 100

bench: $(VENV)/has-bench
	@$(BIN)/python -m benchmarks

bench-quick: $(VENV)/has-bench
	@$(BIN)/python -m benchmarks --quick

bench-budget: $(VENV)/has-run
	@$(BIN)/python -m benchmarks.budget

bench-attacks: $(VENV)/has-run
	@$(BIN)/python -m benchmarks.attacks $(ARGS)

format: $(VENV)/has-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
