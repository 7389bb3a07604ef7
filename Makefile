# Everything a developer does. `make` alone lists the targets.

PYTHON ?= python3
SECONDS_EACH ?= 600
BYTES_EACH ?= 1e9

export PYTHON
export JAVA_HOME := $(CURDIR)/.venv/jvm

PY := .venv/bin/python
PIP := $(PY) -m pip --quiet --disable-pip-version-check
SOURCES := $(shell find src -name '*.py' -o -name '*.pxd')
KERNELS := $(filter src/wirelake/wire/% src/wirelake/dialects/% src/wirelake/broker/route.% src/wirelake/broker/subscriptions.% src/wirelake/journal/batch.% src/wirelake/journal/arrow_stream.%,$(SOURCES))

# What is run on plain kernels, too: the tests of the modules that setup.py compiles.
KERNEL_TESTS := tests/wire tests/broker/test_capture.py tests/broker/test_model.py tests/broker/test_work.py \
	tests/dialects/test_described.py tests/journal/test_batch.py tests/test_address.py

.PHONY: help setup run test soak lint docs bench fuzz fuzz-native lock dist release clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 13

setup: .venv/.kernels .venv/.console .venv/jvm/bin/java ## locked dependencies, compiled kernels, the console and Java

run: setup ## everything: the broker, HTTP and the pipeline into data/lake, with a live view
	.venv/bin/wirelake up

test: setup build/plain/.done ## all tests but the long ones, then those of the kernels on plain kernels
	$(PY) -m pytest -n 2 --dist worksteal
	PYTHONPATH=build/plain WIRELAKE_EXPECT=plain $(PY) -m pytest -n 2 $(KERNEL_TESTS)

soak: setup ## the long tests, then 120 kills of a broker (about 15 minutes); nothing acknowledged may be lost
	$(PY) -m pytest -n 2 -m soak
	$(PY) -m bench.kill --kills 120

lint: setup ## ruff, mypy, and TypeScript over the console's modules
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy
	@if [ -x node_modules/.bin/tsc ]; then node_modules/.bin/tsc -p jsconfig.json; \
	else echo 'lint: no tsc (npm ci brings it), the modules of the console are not checked'; fi

docs: setup ## the documentation as a site with a search, in build/site; a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict
	@echo 'read it: python3 -m http.server --bind 127.0.0.1 --directory build/site 8000'

bench: setup build/plain/.done ## all that is measured in one table, beside other servers; docs/benchmarks.md
	$(PY) -m bench --docs docs/benchmarks.md

fuzz: setup ## every fuzz target for SECONDS_EACH seconds
	$(PY) fuzz/run.py --seconds $(SECONDS_EACH)

fuzz-native: setup ## the kernels under sanitizers and libFuzzer, BYTES_EACH bytes a dialect
	scripts/setup clang
	$(PY) fuzz/native/run.py --bytes $(BYTES_EACH) \
		$(if $(filter command environment,$(firstword $(origin SECONDS_EACH))),--seconds $(SECONDS_EACH))

lock: .venv/.packages ## pin what pyproject.toml asks for; UPGRADE=1 takes newer versions
	.venv/bin/uv pip compile --quiet --no-config --universal --python-version 3.11 \
		--generate-hashes --all-extras --group dev $(if $(UPGRADE),--upgrade) \
		--custom-compile-command 'make lock' --output-file requirements.lock pyproject.toml

dist: setup ## an sdist and manylinux wheels in dist/, each tried in an empty environment
	scripts/dist

release: ## VERSION=0.2.0: all tests and the soak, then version, changelog and tag; publishes nothing
	$(PYTHON) scripts/release.py check '$(VERSION)'
	$(MAKE) lint test soak
	$(PYTHON) scripts/release.py make '$(VERSION)'
	$(MAKE) dist

clean: ## remove all that was built, and .venv
	rm -rf .venv build dist node_modules src/wirelake/console/static/vendor src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*
	find src -name '*.so' -delete
	find . -name __pycache__ -prune -exec rm -rf {} +

.venv/.packages: requirements.lock
	scripts/setup packages

.venv/.project: .venv/.packages pyproject.toml setup.py
	scripts/setup project

.venv/.kernels: .venv/.project $(KERNELS)
	scripts/setup kernels

.venv/.console: .venv/.project package.json package-lock.json src/wirelake/console/vendor.py
	scripts/setup console

.venv/jvm/bin/java: | .venv/.packages
	scripts/setup java

build/plain/.done: .venv/.project $(SOURCES)
	rm -rf build/plain build/lib
	WIRELAKE_BUILD=skip $(PIP) install --no-deps --no-build-isolation --target build/plain .
	touch $@
