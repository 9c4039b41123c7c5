from __future__ import annotations

import pytest

from airflow_horsies.borrowed.airflow import template_env
from airflow_horsies.operators.templates import explain_template
from tests.unit.worker_free import needs_worker_free

pytestmark = needs_worker_free


@pytest.mark.parametrize(
    "text",
    [
        "no template",
        "{{ ds }}-{{ ts_nodash }}-{{ run_id }}",
        "{{ dag_run.conf['day'] }} {{ dag_run.conf.get('x', {}) | tojson }}",
        "{{ ti.task_id }} {{ task_instance.try_number }} {{ dag.dag_id }} {{ task['task_id'] }}",
        "{{ params.who | upper }} {{ logical_date | ds }} {{ macros.ds_add(ds, 1) }}",
        "{% for part in range(3) %}{{ part }}{% endfor %}",
        "{% set day = ds %}{{ day }}",
        "{{ var.value.bucket }} {{ conn.lake.host }}",
        "{{ broken",
    ],
)
def test_template_of_what_a_triggerer_knows_is_accepted(text: str) -> None:
    assert explain_template(text, template_env()) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{{ ti.xcom_pull('a') }}", "uses ti.xcom_pull, which a triggerer cannot answer"),
        ("{{ ti['xcom_pull']('a') }}", "uses ti.xcom_pull, which"),
        ("{{ task_instance.xcom_pull(task_ids='a')['n'] }}", "uses task_instance.xcom_pull, which"),
        ("{% set t = ti %}{{ t.xcom_pull('a') }}", "uses ti as a whole, of which a triggerer knows only dag_id"),
        ("{{ ti[ds] }}", "uses ti.[…], which"),
        ("{{ ti.max_tries }}", "uses ti.max_tries, which"),
        ("{{ dag_run.clear_number }}", "uses dag_run.clear_number, which"),
        ("{{ dag_run.consumed_asset_events }}", "uses dag_run.consumed_asset_events, which"),
        ("{{ triggering_asset_events }}", "uses triggering_asset_events, which a triggerer does not have"),
        ("{{ prev_start_date_success }}", "uses prev_start_date_success, which"),
        ("{{ inlet_events }}", "uses inlet_events, which"),
        ("{{ task_state_store.get('x') }}", "uses task_state_store, which"),
        ("{{ my_macro(ds) }}", "uses my_macro, which"),
        ("{{ ds | my_filter }}", "uses the filter my_filter, which a triggerer does not have"),
        ("{% include 'part.sql' %}", "uses another template file, which"),
        ("{% import 'macros.sql' as m %}{{ m.day() }}", "uses another template file, which"),
    ],
)
def test_template_of_what_it_does_not_know_is_refused(text: str, problem: str) -> None:
    found = explain_template(text, template_env())
    assert found is not None and found.startswith(problem)


def test_filter_that_the_dag_replaces_is_refused() -> None:
    assert explain_template("{{ ds | upper }}", template_env(), frozenset({"upper"})) is not None
