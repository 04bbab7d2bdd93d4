# `make demo` and `make test` are the two commands a newcomer needs; everything else is `make help`.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The tests that need the real control plane run last, so that a broken unit test is seen first.
PYTEST := $(BIN)/python -m pytest -q

.DEFAULT_GOAL := help
.PHONY: help install fix check test e2e demo bench cluster cluster-down double lock proto clean

help: ## what there is
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

install: $(STAMP) ## the local environment, from the lock file

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "cannot make a virtual environment: apt-get install python3-venv"; exit 1; }
	@echo "installing the locked dependencies (a minute or two the first time) ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

fix: install ## format and lint, mending what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: install ## format, lint, types, layers, documents
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy gpu cluster policies scheduler mig_manager device_plugin idle fallow nvml_double
	$(BIN)/lint-imports --no-cache
	$(PYTEST) tests/repo

test: install ## all tests, the real control plane included where it can be had
	@if [ "$$(id -u)" = 0 ] && command -v go > /dev/null; then $(BIN)/python -m tests.controlplane build; fi
	$(PYTEST) --ignore=tests/e2e tests
	$(PYTEST) tests/e2e

e2e: install ## only the tests on the real control plane
	$(BIN)/python -m tests.controlplane build
	$(PYTEST) tests/e2e

demo: install ## the story of one pod, on doubles; CLUSTER=real tells it on a real control plane (root, Go)
	@$(if $(filter real,$(CLUSTER)),$(BIN)/python -m tests.e2e.demo,$(BIN)/fallow demo)

bench: install ## NAME=filter runs one bench; without NAME all, and rewrites bench/RESULTS.md
	@$(if $(NAME),$(BIN)/python -m bench.$(NAME),$(BIN)/python -m bench.all)

cluster: install ## a real Kubernetes on this machine, left up (root)
	@$(BIN)/python -m tests.controlplane up --install

cluster-down: install ## removes it
	@$(BIN)/python -m tests.controlplane down

double: install ## builds the NVML double
	@$(BIN)/python -m nvml_double build

lock: install ## renews requirements.lock
	$(BIN)/python -m pip install -q uv
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --extra test pyproject.toml -o requirements.lock

# In an environment of its own: grpcio-tools lifts protobuf, and pip then falls back to an old OR-tools.
proto: ## renews the stubs of device_plugin/api
	$(PYTHON) -m venv build/proto
	build/proto/bin/python -m pip install -q grpcio-tools==1.76.0
	build/proto/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. device_plugin/api/*.proto

clean: ## removes what was installed and built here
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
