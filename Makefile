# Everything runs in .venv, which is made from python3 when it is missing or pyproject.toml has changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# `make bench BENCH=` runs the benchmarks in full. That of a deployment is run by itself: it waits for two minutes, and
# `make test-flower` starts a deployment too, and asks more of it.
BENCH ?= --quick
BENCHMARKS := $(filter-out benchmarks/deployment.py,$(wildcard benchmarks/*.py))

.DEFAULT_GOAL := help
.PHONY: help install install-torch run test test-servers test-others test-other-blas test-nightly test-reproduction test-all test-flower test-deployment test-deployment-lowest test-torch test-torch-lowest torch fuzz reproduce reproduce-quick test-lowest check bench bench-torch bench-compare pictures docs docs-quick dist clean

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "CONTRIBUTING.md names the others."

install: $(INSTALLED) ## Make .venv and install the package in it, with everything for development

SUPPORTED := $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
  echo "flwr-fco needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) --version`. Try: make PYTHON=python3.12" >&2; exit 1; }

$(INSTALLED): pyproject.toml
	@$(SUPPORTED)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

# `make run` needs what a user installs, and matplotlib: `make install` has brought both.
PLAIN := $(VENV)/.plain
$(PLAIN): pyproject.toml
	@$(SUPPORTED)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test $(INSTALLED) -nt $< || $(BIN)/python -m pip install --quiet --editable '.[plot]'
	@touch $@

run: $(PLAIN) ## Train on real data: FedDualAvg beside FedAvg and scikit-learn, a table and a picture
	$(BIN)/python -m main_job.compare

test: $(INSTALLED) ## Run the tests, without those marked slow, nightly or flower
	$(BIN)/python -m pytest -q -m "not slow and not flower"

# The three parts of `make test`, for continuous integration.
SERVERS := tests/strategies tests/trust tests/simulation
# OpenBLAS adds in an order that depends on the processor, and so do last bits: a test must hold with all of them.
MATHEMATICS := $(addprefix tests/,kernels objectives regularizers certificates engines contract) $(wildcard tests/strategies/*/) tests/strategies/test_algorithms.py
# The part of `make test` about servers, strategies and simulation, but for their mathematics
test-servers: $(INSTALLED)
	$(BIN)/python -m pytest -q -m "not slow and not flower" $(SERVERS) $(addprefix --ignore=,$(MATHEMATICS))

# What neither the part above nor the one below has
test-others: $(INSTALLED)
	$(BIN)/python -m pytest -q -m "not slow and not flower" $(addprefix --ignore=,$(SERVERS) $(MATHEMATICS))

# The part about the mathematics, as OpenBLAS computes on another processor than this one, if one is known
test-other-blas: $(INSTALLED)
	@other=$$(env -u OPENBLAS_CORETYPE $(BIN)/python tools/other_blas.py) && \
	env $${other:+OPENBLAS_CORETYPE=$$other} $(BIN)/python -m pytest -q -m "not slow and not flower" $(MATHEMATICS)

# Run the nightly tests: every strategy instead of one per class (half an hour)
test-nightly: $(INSTALLED)
	$(BIN)/python -m pytest -q -m nightly tests reproduction

# Run the tests of reproduction/: the papers' experiments and their command line
test-reproduction: $(INSTALLED)
	$(BIN)/python -m pytest -q -m "not slow and not flower" reproduction

# Only what has such tests: to collect all others takes half a minute.
# Run the tests that start Flower itself: Ray simulation, SuperLink and SuperNodes
test-flower: $(INSTALLED)
	$(BIN)/python -m pytest -q -m "flower and not nightly" $$(grep -rl 'mark\.flower' --include='test_*.py' tests reproduction)

# Kill and restart SuperNodes and SuperLinks of real deployments (half an hour)
test-deployment: $(INSTALLED)
	$(BIN)/python -m pytest -q -m deployment

test-all: $(INSTALLED) ## Run all tests, those of reproduction/ too
	$(BIN)/python -m pytest -q -m "nightly or not nightly" tests flwr_fco main_job tools reproduction

# `make fuzz FUZZ_CASES=100000` tries more.
FUZZ_CASES ?= 10000

# Fuzz plans, replies, messages, settings, files and command lines with 10,000 malformed inputs
fuzz: $(INSTALLED)
	FUZZ_CASES=$(FUZZ_CASES) $(BIN)/python -m pytest -q tests/fuzz

# Which PyTorch, and for pip where it is: on Linux the package index has it with CUDA, several GB; a build for CPUs
# (750 MB installed) is at PyTorch's own index.
TORCH ?= torch==2.13.0
$(VENV)/.torch: $(INSTALLED)
	$(BIN)/python -m pip install --quiet $(TORCH)
	@touch $@

# Install PyTorch in .venv too (TORCH= says which)
install-torch: $(VENV)/.torch

# The targets that need PyTorch have it beside .venv: all others run without it, at the same time if need be.
BESIDE := .venv-torch
WITH_TORCH := PYTHONPATH=$(CURDIR)/$(BESIDE)$${PYTHONPATH:+:$$PYTHONPATH}
$(BESIDE)/.installed: $(INSTALLED)
	rm -rf $(BESIDE)
	$(BIN)/python -m pip install --quiet --target $(BESIDE) $(TORCH)
	$(BIN)/python -m pip install --quiet --target $(BESIDE) --no-deps 'torch-pruning==1.6.1'
	@touch $@

# Run the tests that need PyTorch
test-torch: $(BESIDE)/.installed
	$(WITH_TORCH) $(BIN)/python -m pytest -q -m "not slow" tests/pytorch flwr_fco/torch reproduction/tests/problems/test_networks.py

# Run the benchmarks that need PyTorch in their quick mode
bench-torch: $(BESIDE)/.installed
	@$(WITH_TORCH) $(BIN)/python tools/forked.py $(addprefix benchmarks/,density.py gpu.py networks.py smaller.py) --quick

torch: test-torch bench-torch ## Run the tests and benchmarks that need PyTorch

LOWEST := .venv-lowest
$(LOWEST)/.installed: pyproject.toml
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --editable . 'flwr==1.22.0' 'pytest>=8' 'hypothesis>=6'
	@touch $@

$(LOWEST)/.torch: $(LOWEST)/.installed
	$(LOWEST)/bin/python -m pip install --quiet $(TORCH)
	@touch $@

# Run the tests that need PyTorch on the lowest release of Flower that is supported
test-torch-lowest: $(LOWEST)/.torch
	$(LOWEST)/bin/python -m pytest -q tests/pytorch flwr_fco/torch

# What calls Flower: records and messages, a Strategy's hooks, a ClientApp and its mods, the grid, node ids, callbacks.
# The mathematics between them does not depend on its release; at night what else travels in messages or in files does.
TOUCHES_FLOWER := tests/messages/test_records.py \
  $(addprefix tests/client_apps/test_,client_app.py flowers_mods.py numpy_client.py) \
  tests/strategies/test_hooks.py tests/strategies/test_options.py \
  tests/trust/test_whose_data.py tests/simulation/test_simulate.py
# Run the tests that touch Flower on the lowest release of it that is supported
test-lowest: $(LOWEST)/.installed
	$(LOWEST)/bin/python -m pytest -q -m "not slow and not flower" $(TOUCHES_FLOWER)

# A deployment of the lowest release of Flower that is supported (three minutes)
test-deployment-lowest: $(LOWEST)/.installed
	$(LOWEST)/bin/python -m pytest -q -m "flower and (nightly or not nightly)" tests/integration/deployment

check: $(INSTALLED) ## Lint, formatting, imports, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/mypy

bench: $(INSTALLED) ## Run the benchmarks but that of a deployment in their quick mode (BENCH= for the full one)
	@$(BIN)/python tools/forked.py $(BENCHMARKS) $(BENCH)

# Compare the engines' costs with the stored ones: a ratio that is 30 % worse is an error
bench-compare: $(INSTALLED)
	$(BIN)/python benchmarks/engines.py --compare

# `make reproduce-quick EXPERIMENTS='*-theor*'` runs those of this pattern.
EXPERIMENTS ?= all
# Run all experiments in their quick mode: one claim each must hold
reproduce-quick: $(INSTALLED)
	$(BIN)/python -m reproduction reproduce '$(EXPERIMENTS)' --quick --quiet --out .run/reproduce-quick

reproduce: $(INSTALLED) ## Run all experiments of the papers (ten hours of a core, goes on where stopped) and write docs/reproduction
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m reproduction reproduce all --store --out .run/reproduce

# Draw the pictures of the README again
pictures: $(INSTALLED)
	$(BIN)/python -m main_job.compare --flower-rounds 0 --picture docs/images/main-job.png
	@set -e; for script in benchmarks/pages/make_*.py; do $(BIN)/python $$script; done

BUILD_SITE := $(BIN)/python -m sphinx -W --keep-going -q docs docs/_build/html
docs: $(INSTALLED) $(BESIDE)/.installed ## Build the documentation site in docs/_build/html; nothing is fetched
	$(WITH_TORCH) $(BUILD_SITE)

# Without PyTorch, which another job may be installing.
# Build it without running the gallery's scripts
docs-quick: $(INSTALLED)
	$(BUILD_SITE) -D plot_gallery=0

# Build wheel and sdist, and run the README's block with each and the lowest and newest Flower (ten minutes)
dist:
	PYTHON=$(PYTHON) tools/try_release.sh

clean: ## Remove .venv and what runs and tests have written
	rm -rf $(VENV) $(LOWEST) $(BESIDE) docs/_build docs/auto_gallery docs/reference/api .run .mypy_cache .pytest_cache .ruff_cache build dist
