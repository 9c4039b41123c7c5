# Every target works in a fresh clone. The first one creates .venv (see .ci/venv).
SHELL := /bin/bash
ARGS ?=
RELEASES ?= 0.1.7 0.1.10 0.2.9 0.3.1 0.4.5 0.4.6 0.5.0 0.5.2
export PYTHON
# No update checks by Deno, and its cache inside the folder.
export DENO_NO_UPDATE_CHECK := 1
export DENO_DIR := $(CURDIR)/.cache/deno
# These would affect the virtual environment; without bytecode, every process of Airflow compiles thousands of modules.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV PYTHONDONTWRITEBYTECODE

.PHONY: help demo docs dist payloads coverage test test-slow screenshots browser check lint format test-airflow-side test-oldest-airflow \
	test-matrix test-releases chaos chaos-broken interleavings bench bench-deferrals venv clean

help:  ## Show this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1|\2/p' Makefile | while IFS='|' read -r name what; do \
		printf '  make %-20s %s\n' "$$name" "$$what"; \
	done

demo: venv  ## Start Postgres, Airflow and a horsies worker with PySpark; ARGS=--once stops after one run
	@.venv/bin/python -m airflow_horsies.embedded demo --end-with-parent $(ARGS)

test: lint browser  ## Run lint, all tests that are not slow, test-airflow-side and test-oldest-airflow; ARGS goes to pytest
	@.venv/bin/python .ci/test $(ARGS)

test-slow: venv browser  ## Run the slow tests: clusters, faults, many tasks
	WAITERS=50 SHORT_RUNS=200 .venv/bin/python -m pytest tests/acceptance/test_faults.py $(ARGS)
	DEMO_DAYS=31 .venv/bin/python -m pytest tests/acceptance/test_demo.py $(ARGS)
	WALKS=100 .venv/bin/python -m pytest tests/integration/test_state_machine.py $(ARGS)
	WORKFLOW_CANCELS=200 .venv/bin/python -m pytest tests/integration/test_workflow_contract.py -k random_moments $(ARGS)
	WORKFLOW_KILLS=200 .venv/bin/python -m pytest tests/integration/test_workflow_kills.py $(ARGS)
	PARKED_TASKS=1000 PARKING_RACES=200 .venv/bin/python -m pytest tests/integration/test_signals.py -k "many_parked or between_the_look" \
		-o timeout=3600 $(ARGS)
	.venv/bin/python -m pytest tests -m slow --ignore=tests/acceptance/test_faults.py --ignore=tests/acceptance/test_demo.py $(ARGS)

screenshots: venv browser  ## Write screenshots of the pages in the Airflow UI to docs/images
	DEMO_DAYS=31 SCREENSHOTS=docs/images .venv/bin/python -m pytest tests/acceptance/test_ui.py tests/acceptance/test_demo.py $(ARGS)

docs: venv  ## Update the generated pages and build the documentation site in build/site
	AIRFLOW_HOME="$(CURDIR)/.cache/docs" .venv/bin/python -W ignore -m tests.docs
	.venv/bin/python -m zensical build --clean --strict
	@echo "Open file://$(CURDIR)/build/site/index.html"

dist:  ## Build and check wheel and sdist in dist; install the wheel alone on Python 3.11 and 3.13
	@.ci/dist

check: lint  ## Run lint and the unit tests; use it before a commit
	.venv/bin/python -m pytest tests/unit $(ARGS)

coverage: venv  ## Report the lines that the unit tests do not reach; ARGS=tests/integration covers more
	.venv/bin/coverage erase
	.venv/bin/coverage run -m pytest -q $(or $(ARGS),tests/unit)
	.venv/bin/coverage combine -q
	.venv/bin/coverage report --sort=cover

lint: venv  ## Run ruff, mypy, the import contracts, and deno for the page scripts
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	.venv/bin/deno fmt --check
	.venv/bin/deno lint
	.venv/bin/deno check airflow_horsies/ui/static

format: venv  ## Format Python, page scripts and styles
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .
	.venv/bin/deno fmt

payloads: venv  ## Write airflow_horsies/ui/static/payloads.d.ts from airflow_horsies/ui/payloads.py
	.venv/bin/python -W ignore -m tests.docs.payload_types

test-airflow-side:  ## Test the provider on Python 3.11 or 3.12 without horsies and pyspark
	@.ci/airflow-side

test-oldest-airflow:  ## Import the package and every example DAG with the oldest supported Airflow
	@.ci/oldest-airflow

test-matrix: export ARGS := $(ARGS)
test-matrix:  ## Run the unit and dag.test() suites on Airflow 3.1, 3.2 and 3.3; ARGS goes to pytest
	@.ci/matrix

test-releases: venv  ## Run the contract suite with real workers on other releases of horsies; RELEASES selects them
	TEST_RELEASES="$(RELEASES)" .venv/bin/python -m pytest $(ARGS) \
		tests/integration/test_wire_contract.py tests/integration/test_upstream_digests.py \
		tests/integration/test_workflow_contract.py tests/integration/test_workflow_kills.py tests/integration/test_parking.py

chaos: venv  ## Run random faults on the real stack, results in benchmarks/chaos.json; ARGS=--seed=7 repeats a run
	@.venv/bin/python -W ignore -m tests.chaos --out benchmarks/chaos.json $(ARGS)

interleavings: venv  ## Run every interleaving of two writers on Postgres, results in benchmarks/interleavings.json
	@.venv/bin/python -W ignore -m tests.interleavings --out benchmarks/interleavings.json $(ARGS)

chaos-broken: venv  ## Break rules on purpose, one by one, and check that the trials notice; ARGS selects some of them
	@.venv/bin/python -W ignore -m tests.chaos.broken $(ARGS)

bench: venv  ## Measure all figures, results in benchmarks/results.json, the site and the README; ARGS selects some of them
	@.ci/peers
	@.venv/bin/python -m benchmarks $(ARGS)

bench-deferrals: venv  ## Measure 500 quick deferrals on a busy machine, results in benchmarks/deferrals.json; ARGS=--deferrals=50 runs fewer
	@.venv/bin/python -W ignore -m benchmarks.deferrals --out benchmarks/deferrals.json $(ARGS)

venv:  ## Create or update .venv
	@.ci/venv

browser:
	@.ci/browser

clean:  ## Remove .venv, the caches, and the data of the demo and of your own stack
	@if [ -x .venv/bin/python ]; then \
		for folder in .demo .horsies; do .venv/bin/python -m airflow_horsies.embedded clean --folder $$folder || exit 1; done; \
	fi
	rm -rf .venv .demo .horsies .cache build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
