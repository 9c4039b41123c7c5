"""What tasks say to harm whoever looks at it, or more of it than a page can hold; in Airflow's real api-server."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from urllib.parse import quote

import pytest

from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import AirflowTry, TaskInstanceKey, TaskSpec
from tests.integration.conftest import MakeHook
from tests.integration.releases import MOVED
from tests.integration.test_attempts import begin_attempt, end_attempt, write_lines, write_progress
from tests.integration.ui_site import PAGES, Fields, Site, add_try, api_path

pytestmark = [pytest.mark.parametrize("release", [MOVED], indirect=True), pytest.mark.usefixtures("of_site")]

SCRIPT = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
# With what Postgres takes as text; JSON also takes NUL and half a surrogate pair.
HOSTILE = f"{SCRIPT}\x01\x08\x0b\x1b[31m\x7f\x85\u202e\u2066\u2028\u2029\ufeff\uffff ' \" & \\u0000 %00 {{{{7*7}}}}"
# No DAG's or task's id holds a slash.
HOSTILE_ID = HOSTILE.replace("/", "")
HOSTILE_JSON = f"{HOSTILE}\x00 half a pair \ud800"
MEGABYTE = 2**20


def answers_of(site: Site, instance: TaskInstanceKey) -> dict[str, bytes]:
    """Every JSON answer there is about a task instance, none of which is anything but JSON in ASCII."""
    gantt = f"{PAGES}/api/dags/{quote(instance.dag_id, safe='')}/gantt/{quote(instance.run_id, safe='')}"
    paths = {
        "instance": api_path(instance),
        "items": api_path(instance, "/items"),
        "values": api_path(instance, "/values"),
        "gantt": gantt,
        "overview": f"{PAGES}/api/overview",
        "failures": f"{PAGES}/api/failures",
    }
    found = {}
    for name, path in paths.items():
        answer = site.ask(path)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json"), (name, answer.text)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.content.isascii()
        json.loads(answer.content)
        found[name] = answer.content
    return found


def test_hostile_text_of_a_worker_is_only_text(
    site: Site, make_hook: MakeHook, served_database: str, fields: Fields
) -> None:
    hook = make_hook(served_database)
    site.connect(fields(served_database))
    for number, spec in enumerate(
        (
            TaskSpec(task_name="echo", kwargs={"value": HOSTILE}, retain_rerun_input=True),
            TaskSpec(task_name="blow_up", kwargs={"text": HOSTILE}),
            TaskSpec(task_name="fail", kwargs={"code": "SCRIPT_<SCRIPT>"}),
            TaskSpec(task_name=HOSTILE[:200]),
        )
    ):
        instance = TaskInstanceKey(dag_id=HOSTILE_ID, run_id=f"{HOSTILE} {number}", task_id=HOSTILE_ID)
        sent = hook.submit_task(spec, instance, AirflowTry(try_number=1))
        hook.wait([sent.task_id], timeout_seconds=60)
        begin_attempt(hook, sent.task_id, hostname=HOSTILE)
        write_lines(hook, sent.task_id, HOSTILE, level="INFO")
        write_progress(hook, sent.task_id, 1, stage=HOSTILE)
        failure = {"error_code": HOSTILE, "error_message": HOSTILE, "metrics": {HOSTILE: HOSTILE_JSON}}
        end_attempt(hook, sent.task_id, outcome="FAILED", **failure)
        found = answers_of(site, instance)
        shown = json.loads(found["instance"])
        assert (shown["run_id"], shown["log"]["lines"][0]["text"]) == (instance.run_id, HOSTILE)
        if number == 0:
            assert json.loads(json.loads(found["values"])["result"]) == HOSTILE
        log = site.ask(api_path(instance, "/log.txt"))
        assert log.headers["content-type"] == "text/plain; charset=utf-8"
        assert re.fullmatch(r'attachment; filename="[A-Za-z0-9_.-]+\.log"', log.headers["content-disposition"])
        assert HOSTILE in log.text
        page = site.ask(api_path(instance).replace("/horsies/api/", "/horsies/"), headers={"accept": "text/html"})
        assert (page.status_code, page.text.count("<script"), page.text.count("<img")) == (200, 1, 0)


def test_hostile_arguments_are_only_text(connected: Site, hook: HorsiesHook, postgres: EmbeddedPostgres) -> None:
    instance = TaskInstanceKey(dag_id="hostile", run_id="arguments", task_id="t")
    for kwargs in ({"value": HOSTILE_JSON.replace("\ud800", "")}, {HOSTILE: {HOSTILE: [HOSTILE]}}):
        hook.submit_task(TaskSpec(task_name="echo", kwargs=kwargs), instance, AirflowTry(try_number=1))
        add_try(postgres, instance, try_number=1, started_at=datetime.now(UTC), rendered={"task_kwargs": kwargs})
        found = answers_of(connected, instance)
        assert json.loads(json.loads(found["values"])["kwargs"]) == kwargs
        instance = TaskInstanceKey(dag_id="hostile", run_id="arguments of another", task_id="t")


def test_large_results_and_arguments_are_cut(
    site: Site, make_hook: MakeHook, served_database: str, fields: Fields
) -> None:
    hook = make_hook(served_database)
    site.connect(fields(served_database))
    instance = TaskInstanceKey(dag_id="large", run_id="r", task_id="t")
    specs = [
        TaskSpec(task_name="echo", kwargs={"value": "ü" * (2 * MEGABYTE)}),
        TaskSpec(task_name="blow_up", kwargs={"text": "ü" * (2 * MEGABYTE)}),
    ]
    ids = [sent.task_id for sent in hook.submit_tasks(specs, instance, AirflowTry(try_number=1))]
    hook.wait(ids, timeout_seconds=60)
    found = answers_of(site, instance)
    assert json.loads(found["values"])["result"].endswith("…")
    sizes = {name: len(content) for name, content in found.items()}
    assert max(sizes.values()) < MEGABYTE, sizes
    failed = site.ask(api_path(instance, "/values?position=1"))
    assert (failed.status_code, len(failed.content) < MEGABYTE) == (200, True)


def test_a_large_log_is_paged_and_comes_whole_as_a_file(connected: Site, hook: HorsiesHook) -> None:
    instance = TaskInstanceKey(dag_id="large", run_id="log", task_id="t")
    task_id = hook.submit_task(
        TaskSpec(task_name="echo", kwargs={"value": ""}), instance, AirflowTry(try_number=1)
    ).task_id
    begin_attempt(hook, task_id)
    lines = [f"{number:06d} <script>\x1b[31m\u202e {'x' * 1_000}" for number in range(5_000)]
    for start in range(0, len(lines), 500):
        write_lines(hook, task_id, *lines[start : start + 500], first=start + 1)
    begin_attempt(hook, task_id, 2)
    one_long = "y" * (5 * MEGABYTE)
    write_lines(hook, task_id, one_long, attempt=2)
    page = connected.ask(api_path(instance, "?lines=1000"))
    assert (page.status_code, len(page.content) < 2 * MEGABYTE) == (200, True)
    assert [line["text"] for line in page.json()["log"]["lines"]] == lines[:1_000]
    assert page.json()["log"]["more"] is True
    long = connected.ask(api_path(instance, "?after_attempt=2"))
    assert len(long.content) < MEGABYTE
    file = connected.ask(api_path(instance, "/log.txt"))
    assert file.headers["x-content-type-options"] == "nosniff"
    assert file.headers["content-disposition"].startswith("attachment; ")
    written = file.text.removesuffix("\n").split("\n")
    assert [text.partition(" INFO    ")[2] for text in written] == [*lines, one_long]
    first = connected.ask(api_path(instance, "/log.txt?attempt=1"))
    assert first.text.count("\n") == len(lines)


def test_what_is_named_like_a_secret_is_masked_at_any_depth(
    connected: Site, hook: HorsiesHook, postgres: EmbeddedPostgres
) -> None:
    deep: object = {"token": "hunter-deep"}
    for level in range(20):
        deep = [deep] if level % 2 else {"inner": deep}
    kwargs = {
        "password": "hunter-one",
        "conn": {"api_key": "hunter-two", "passwd": "hunter-three", "user": "in the open"},
        "rows": [{"authorization": "hunter-four"}, {"secret": {"nested": "hunter-five"}}],
        "deep": deep,
    }
    instance = TaskInstanceKey(dag_id="secrets", run_id="r", task_id="t")
    hook.submit_task(TaskSpec(task_name="echo", kwargs=kwargs), instance, AirflowTry(try_number=1))
    add_try(postgres, instance, try_number=1, started_at=datetime.now(UTC), rendered={"task_kwargs": kwargs})
    answer = connected.ask(api_path(instance, "/values"))
    shown = answer.json()["kwargs"]
    assert "in the open" in shown
    assert "hunter" not in answer.text
    assert shown.count("***") >= 6
