# One environment, .venv/, made once by the first target that needs it. Every target can be called first.
RECENT := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(or $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c '$(RECENT)' 2>/dev/null && echo $$p && break; done),python3)
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.stamp
BROWSER := $(VENV)/.browser
CHROMIUM := chromium chromium-browser google-chrome

.DEFAULT_GOAL := help
.PHONY: help setup demo test check format docs wheel-check ci acceptance slurm-up slurm-down clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/make \1\t\2/p' Makefile | expand -t 20

setup: $(STAMP)  ## make .venv/ and install dptrain into it (once)

# A half-made environment has no stamp: the same commands complete it. A changed pyproject.toml or Makefile installs into the same one.
$(STAMP): pyproject.toml Makefile
	@$(PYTHON) -c '$(RECENT)' 2>/dev/null || { \
	  echo "dptrain needs Python 3.11 or newer, and '$(PYTHON)' is: $$($(PYTHON) --version 2>&1 | tail -n 1)"; \
	  echo "    write: make $(or $(MAKECMDGOALS),setup) PYTHON=/path/to/python3.11"; exit 2; }
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV) || { \
	  echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu it needs the package python3-venv"; exit 2; }
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev,parquet,weights]'
	@touch $(STAMP)

# What opens the page of a report in a browser; the browser itself is the system's.
$(BROWSER): $(STAMP)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[browser]'
	@touch $(BROWSER)

demo: $(STAMP)  ## reconstruct a photograph on two local ranks
	$(VENV)/bin/dptrain infer templates/demo.yaml --cluster local

test: $(STAMP)  ## every test (at most 15 minutes on 2 cores)
	$(PY) -m pytest -m "not acceptance"

check: $(STAMP)  ## ruff and mypy --strict
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: $(STAMP)  ## rewrite the code as `make check` wants it
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

docs: $(STAMP)  ## write docs/spec.md from the texts in dptrain/spec/
	$(PY) scripts/spec_reference.py

wheel-check: $(STAMP)  ## build the wheel and look into it
	$(PY) scripts/wheel_check.py

ci: check wheel-check test  ## what .ci/run runs

acceptance: $(BROWSER)  ## the long matrices and the benchmarks
	@for p in $(CHROMIUM); do command -v $$p >/dev/null && exit; done; \
	  echo "no chromium here: the tests of the report's page are skipped (Debian: apt-get install chromium)"
	$(PY) -m pytest -m acceptance
	$(PY) benchmarks/denoiser.py
	$(PY) benchmarks/replicated.py
	$(PY) benchmarks/layouts.py

slurm-up: $(STAMP)  ## start a small SLURM on this machine
	$(PY) -m tests.slurm_cluster up

slurm-down: $(STAMP)  ## stop it
	$(PY) -m tests.slurm_cluster down

clean:  ## remove what tests and builds left; runs/ and .venv/ stay
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
