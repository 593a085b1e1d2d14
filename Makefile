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

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

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

run: $(PLAIN) ## Train on real data: FedDualAvg beside FedAvg and scikit-learn, a table and a picture; with Ray, also through Flower
	$(BIN)/python -m main_job.compare

test: $(INSTALLED) ## Run the tests, without those marked slow, nightly or flower
	$(BIN)/python -m pytest -q -m "not slow and not flower"

# The two halves of `make test`, for continuous integration.
SERVERS := tests/strategies tests/trust tests/simulation
test-servers: $(INSTALLED) ## The half of `make test` about servers, strategies and simulation
	$(BIN)/python -m pytest -q -m "not slow and not flower" $(SERVERS)

test-others: $(INSTALLED) ## The other half of it
	$(BIN)/python -m pytest -q -m "not slow and not flower" $(addprefix --ignore=,$(SERVERS))

# OpenBLAS adds in an order that depends on the processor, and so do last bits: a test must hold with all of them.
MATHEMATICS := $(addprefix tests/,kernels objectives regularizers mirror_maps certificates engines contract) $(wildcard tests/strategies/*/) tests/strategies/test_algorithms.py
test-other-blas: $(INSTALLED) ## Run the tests of the mathematics as OpenBLAS computes on another processor
	@other=$$(env -u OPENBLAS_CORETYPE $(BIN)/python tools/other_blas.py) && \
	if test -z "$$other"; then echo "no other core type of OpenBLAS is known for this machine: nothing to test"; \
	else OPENBLAS_CORETYPE=$$other $(BIN)/python -m pytest -q -m "not slow and not flower" $(MATHEMATICS); fi

test-nightly: $(INSTALLED) ## Run what one strategy of each class stands for by day, with all strategies (half an hour)
	$(BIN)/python -m pytest -q -m nightly tests reproduction

test-reproduction: $(INSTALLED) ## Run the tests of reproduction/: the papers' experiments and their command line
	$(BIN)/python -m pytest -q -m "not slow and not flower" reproduction

# Only what has such tests: to collect all others takes half a minute.
test-flower: $(INSTALLED) ## Run the tests that start Flower itself: Ray simulation, SuperLink and SuperNodes
	$(BIN)/python -m pytest -q -m "flower and not nightly" $$(grep -rl 'mark\.flower' --include='test_*.py' tests reproduction)

test-deployment: $(INSTALLED) ## Kill and restart SuperNodes and SuperLinks of real deployments (half an hour)
	$(BIN)/python -m pytest -q -m deployment

test-all: $(INSTALLED) ## Run all tests, those of reproduction/ too
	$(BIN)/python -m pytest -q -m "nightly or not nightly" tests flwr_fco main_job tools reproduction

# `make fuzz FUZZ_CASES=100000` tries more.
FUZZ_CASES ?= 10000

fuzz: $(INSTALLED) ## Try 10,000 odd plans, replies, questions, answers, messages, settings, files and command lines: errors in words only
	FUZZ_CASES=$(FUZZ_CASES) $(BIN)/python -m pytest -q tests/fuzz reproduction/tests/test_fuzz.py

# Which PyTorch, and for pip where it is: on Linux the package index has it with CUDA, several GB; a build for CPUs
# (750 MB installed) is at PyTorch's own index.
TORCH ?= torch==2.13.0
$(VENV)/.torch: $(INSTALLED)
	$(BIN)/python -m pip install --quiet $(TORCH)
	@touch $@

install-torch: $(VENV)/.torch ## Install PyTorch in .venv too (TORCH= says which)

# The targets that need PyTorch have it beside .venv: all others run without it, at the same time if need be.
BESIDE := .venv-torch
WITH_TORCH := PYTHONPATH=$(CURDIR)/$(BESIDE)$${PYTHONPATH:+:$$PYTHONPATH}
$(BESIDE)/.installed: $(INSTALLED)
	rm -rf $(BESIDE)
	$(BIN)/python -m pip install --quiet --target $(BESIDE) $(TORCH)
	$(BIN)/python -m pip install --quiet --target $(BESIDE) --no-deps 'torch-pruning==1.6.1'
	@touch $@

test-torch: $(BESIDE)/.installed ## Run the tests that need PyTorch
	$(WITH_TORCH) $(BIN)/python -m pytest -q -m "not slow" tests/pytorch flwr_fco/torch reproduction/tests/problems/test_networks.py

bench-torch: $(BESIDE)/.installed ## Run the benchmarks that need PyTorch in their quick mode
	@set -e; for name in density gpu networks smaller; do echo "== benchmarks/$$name.py"; $(WITH_TORCH) $(BIN)/python benchmarks/$$name.py --quick; done

torch: test-torch bench-torch ## Both, one after the other

LOWEST := .venv-lowest
$(LOWEST)/.installed: pyproject.toml
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --editable . 'flwr==1.22.0' 'pytest>=8' 'hypothesis>=6'
	@touch $@

$(LOWEST)/.torch: $(LOWEST)/.installed
	$(LOWEST)/bin/python -m pip install --quiet $(TORCH)
	@touch $@

test-torch-lowest: $(LOWEST)/.torch ## Run the tests that need PyTorch on the lowest release of Flower that is supported
	$(LOWEST)/bin/python -m pytest -q tests/pytorch flwr_fco/torch

# What calls Flower: records and messages, a Strategy's hooks, a ClientApp and its mods, the grid, node ids, callbacks.
# The mathematics between them does not depend on its release.
TOUCHES_FLOWER := tests/messages tests/client_apps/test_client_app.py tests/client_apps/test_flowers_mods.py \
  tests/strategies/test_as_flowers_tests.py tests/strategies/test_hooks.py tests/strategies/test_options.py \
  tests/strategies/test_resume.py tests/strategies/test_unmodified.py \
  tests/trust/test_nodes.py tests/simulation/test_simulate.py tests/simulation/test_without_messages.py
test-lowest: $(LOWEST)/.installed ## Run the tests that touch Flower on the lowest release of it that is supported
	$(LOWEST)/bin/python -m pytest -q -m "not slow and not flower" $(TOUCHES_FLOWER)

test-deployment-lowest: $(LOWEST)/.installed ## A deployment of the lowest release of Flower that is supported (three minutes)
	$(LOWEST)/bin/python -m pytest -q -m "flower and (nightly or not nightly)" tests/integration/deployment

check: $(INSTALLED) ## Lint, formatting, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(INSTALLED) ## Run the benchmarks but that of a deployment in their quick mode (BENCH= for the full one)
	@set -e; for script in $(BENCHMARKS); do echo "== $$script $(BENCH)"; $(BIN)/python $$script $(BENCH); done

bench-compare: $(INSTALLED) ## Compare the engines' costs with the stored ones: a ratio that is 30 % worse is an error
	$(BIN)/python benchmarks/engines.py --compare

# `make reproduce-quick EXPERIMENTS='*-theor*'` runs those of this pattern.
EXPERIMENTS ?= all
reproduce-quick: $(INSTALLED) ## Run all experiments in their quick mode: one claim each must hold
	$(BIN)/python -m reproduction reproduce '$(EXPERIMENTS)' --quick --quiet --out .run/reproduce-quick

reproduce: $(INSTALLED) ## Run all experiments in full (ten hours of one core, of which docs/reproduction has the parts; goes on where it was stopped) and write docs/reproduction
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m reproduction reproduce all --out .run/reproduce
	$(BIN)/python docs/collect_reproduction.py .run/reproduce

pictures: $(INSTALLED) ## Draw the pictures of the README again
	$(BIN)/python -m main_job.compare --flower-rounds 0 --picture docs/images/main-job.png
	@set -e; for script in benchmarks/pages/make_*.py; do $(BIN)/python $$script; done

BUILD_SITE := $(BIN)/python -m sphinx -W --keep-going -q docs docs/_build/html
docs: $(INSTALLED) $(BESIDE)/.installed ## Build the documentation site in docs/_build/html, gallery included; nothing is fetched
	$(WITH_TORCH) $(BUILD_SITE)

# Without PyTorch, which another job may be installing.
docs-quick: $(INSTALLED) ## Build it without running the gallery's scripts
	$(BUILD_SITE) -D plot_gallery=0

dist: ## Build wheel and sdist, and run the README's block with each and the lowest and newest Flower (ten minutes)
	PYTHON=$(PYTHON) tools/try_release.sh

clean: ## Remove .venv and what runs and tests have written
	rm -rf $(VENV) $(LOWEST) $(BESIDE) docs/_build docs/auto_gallery docs/reference/api .run .mypy_cache .pytest_cache .ruff_cache build dist
