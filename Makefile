# Everything runs in a virtual environment inside the checkout; each target installs what it needs.
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help demo test test-slow fuzz soak check coverage bench bench-quick bench-budget bench-attacks format clean

help:
	@echo 'make demo          the main job, on this machine, in under a minute'
	@echo 'make test          all tests but the slow ones'
	@echo 'make test-slow     the tests that need many seconds of real time'
	@echo 'make fuzz          anything said to everything, for ten minutes, or FUZZ_MINUTES'
	@echo 'make soak          cuts and kills at random with everything real, for a minute, or SOAK_SECONDS'
	@echo 'make check         format, lint, types, layers, and the wheel in an empty environment'
	@echo 'make coverage      every branch of the core is reached by its own tests'
	@echo 'make bench         how fast it is beside what could be used instead, in a quarter of an hour'
	@echo 'make bench-quick   the same in a minute, roughly'
	@echo 'make bench-budget  what one message costs, step by step'
	@echo 'make bench-attacks what attacks cost those who work'
	@echo 'make format        write the format that make check wants'
	@echo 'make clean         remove the virtual environment and what was built'

$(VENV)/bin/python:
	tools/make_venv $(VENV)

$(VENV)/has-%: $(VENV)/bin/python pyproject.toml
	$(PIP) --editable '.$(if $(filter run,$*),,[$*])'
	@touch $@

# No extra of the package: those who install the program have nothing to do with it.
$(VENV)/has-bench: $(VENV)/has-run benchmarks/requirements.txt
	$(PIP) --requirement benchmarks/requirements.txt
	@touch $@

demo: $(VENV)/has-run
	@$(BIN)/python examples/demo.py

# In two processes, a file of tests in one of them: half the time on any machine of today.
test: $(VENV)/has-test
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

test-slow: $(VENV)/has-test
	$(BIN)/python -m pytest -q -m slow

# What is found is told with the seed that finds it again.
fuzz: $(VENV)/has-test
	@$(BIN)/python -m tests.fuzz.rounds

# The same again: SOAK_SEED, as it was told.
SOAK_SECONDS ?= 60
soak: $(VENV)/has-test
	@$(BIN)/python -m tests.end_to_end.soak $(SOAK_SECONDS) $(SOAK_SEED)

check: $(VENV)/has-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	tools/check_wheel $(BIN)/python

coverage: $(VENV)/has-dev
	$(BIN)/coverage run --branch --source acp_gateway/protocol -m pytest -q tests/protocol
	$(BIN)/coverage report --show-missing --fail-under 100

bench: $(VENV)/has-bench
	@$(BIN)/python -m benchmarks

bench-quick: $(VENV)/has-bench
	@$(BIN)/python -m benchmarks --quick

bench-budget: $(VENV)/has-run
	@$(BIN)/python -m benchmarks.budget

bench-attacks: $(VENV)/has-run
	@$(BIN)/python -m benchmarks.attacks

format: $(VENV)/has-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
