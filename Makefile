# Every target works from a fresh clone; the first use makes .venv (see .ci/venv).
SHELL := /bin/bash
ARGS ?=
RELEASES ?= 0.1.7 0.1.10 0.2.9 0.3.1 0.4.5 0.4.6 0.5.0 0.5.2
export PYTHON
# Deno asks for newer releases of itself, and keeps what it knows of the files.
export DENO_NO_UPDATE_CHECK := 1
export DENO_DIR := $(CURDIR)/.cache/deno
# They would reach into the virtual environment.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV

.PHONY: help demo docs dist payloads test test-slow screenshots browser check lint format test-airflow-side test-oldest-airflow \
	test-matrix test-releases chaos chaos-broken interleavings bench bench-deferrals venv clean

help:  ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1|\2/p' Makefile | while IFS='|' read -r name what; do \
		printf '  make %-20s %s\n' "$$name" "$$what"; \
	done

demo: venv  ## Postgres, Airflow and a horsies worker with PySpark; ARGS=--once ends by itself
	@.venv/bin/python -m airflow_horsies.embedded demo --end-with-parent $(ARGS)

test: lint browser  ## lint, all tests that are not slow, and test-airflow-side and test-oldest-airflow; ARGS goes to pytest
	@.venv/bin/python .ci/test $(ARGS)

test-slow: venv  ## what 'make test' leaves out for its time: clusters, deaths of all kinds, many tasks
	WAITERS=50 SHORT_RUNS=200 .venv/bin/python -m pytest tests/acceptance/test_faults.py $(ARGS)
	DEMO_DAYS=31 .venv/bin/python -m pytest tests/acceptance/test_demo.py $(ARGS)
	WALKS=100 .venv/bin/python -m pytest tests/integration/test_state_machine.py $(ARGS)
	.venv/bin/python -m pytest tests -m slow --ignore=tests/acceptance/test_faults.py --ignore=tests/acceptance/test_demo.py $(ARGS)

screenshots: venv browser  ## pictures of the pages in the Airflow UI, into docs/images
	DEMO_DAYS=31 SCREENSHOTS=docs/images .venv/bin/python -m pytest tests/acceptance/test_ui.py tests/acceptance/test_demo.py $(ARGS)

docs: venv  ## the documentation site, into build/site; first what its pages show of the code
	AIRFLOW_HOME="$(CURDIR)/.cache/docs" .venv/bin/python -W ignore -m tests.docs
	.venv/bin/python -m zensical build --clean --strict
	@echo "The site: file://$(CURDIR)/build/site/index.html"

dist:  ## wheel and sdist into dist, checked; the wheel alone is installed on Python 3.11 and 3.13
	@.ci/dist

check: lint  ## before a commit: lint and unit tests
	.venv/bin/python -m pytest tests/unit $(ARGS)

lint: venv  ## ruff, mypy and the import contracts; deno for the page scripts
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	.venv/bin/deno fmt --check
	.venv/bin/deno lint
	.venv/bin/deno check airflow_horsies/ui/static

format: venv  ## Python, page scripts and styles as 'make lint' wants them
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .
	.venv/bin/deno fmt

payloads: venv  ## airflow_horsies/ui/static/payloads.d.ts, from airflow_horsies/ui/payloads.py
	.venv/bin/python -W ignore -m tests.docs.payload_types

test-airflow-side:  ## the provider on Python 3.11 or 3.12, without horsies and pyspark
	@.ci/airflow-side

test-oldest-airflow:  ## the package and every example DAG, imported by the oldest Airflow that is supported
	@.ci/oldest-airflow

test-matrix: export ARGS := $(ARGS)
test-matrix:  ## the unit and dag.test() suites on Airflow 3.1, 3.2 and 3.3; ARGS goes to pytest
	@.ci/matrix

test-releases: venv  ## the contract suite, with real workers, on further releases of horsies; RELEASES names others
	TEST_RELEASES="$(RELEASES)" .venv/bin/python -m pytest $(ARGS) \
		tests/integration/test_wire_contract.py tests/integration/test_upstream_digests.py

chaos: venv  ## faults and changes of all kinds on the real stack, drawn from a seed, into benchmarks/chaos.json; ARGS=--seed=7 draws them again
	@.venv/bin/python -W ignore -m tests.chaos --out benchmarks/chaos.json $(ARGS)

interleavings: venv  ## every order in which two writers can meet on Postgres, into benchmarks/interleavings.json
	@.venv/bin/python -W ignore -m tests.interleavings --out benchmarks/interleavings.json $(ARGS)

chaos-broken: venv  ## rules broken on purpose, one by one: the trials must notice each; ARGS names some of them
	@.venv/bin/python -W ignore -m tests.chaos.broken $(ARGS)

bench: venv  ## every figure beside its peers, into benchmarks/results.json, the site and the README; ARGS names some of them
	@.ci/peers
	@.venv/bin/python -m benchmarks $(ARGS)

bench-deferrals: venv  ## 500 quick deferrals on a busy machine, into benchmarks/deferrals.json; ARGS=--deferrals=50 makes fewer
	@.venv/bin/python -W ignore -m benchmarks.deferrals --out benchmarks/deferrals.json $(ARGS)

venv:  ## .venv alone
	@.ci/venv

browser:
	@.ci/browser

clean:  ## remove .venv, the caches and the demo's data
	@if [ -x .venv/bin/python ]; then .venv/bin/python -m airflow_horsies.embedded clean; fi
	rm -rf .venv .demo .horsies .cache build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
