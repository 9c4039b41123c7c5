"""What the routes tell, in Airflow's real api-server; who may see it is in test_ui_access.py."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.embedded.process import free_ports
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.links import HorsiesAttemptsLink
from airflow_horsies.models import AirflowTry, RetryPolicy, TaskInstanceKey, TaskSpec
from tests.integration.conftest import MakeHook
from tests.integration.releases import MOVED
from tests.integration.test_attempts import begin_attempt, end_attempt, write_lines, write_progress
from tests.integration.ui_site import BASE_PATH, INSTANCE, PAGES, Fields, Site, api_path, submit

# What differs between releases is the wire, which has tests of its own.
pytestmark = [pytest.mark.parametrize("release", [MOVED], indirect=True), pytest.mark.usefixtures("of_site")]

RUN_IDS = ("a/b", "with space", "läuft 日本", "100%2B", "x/tasks/y/1", "q?a#b&c;d")


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Callable[[TaskInstanceKey], str]:
    def link(instance: TaskInstanceKey) -> str:
        monkeypatch.setenv("AIRFLOW__API__BASE_URL", f"http://airflow.test{BASE_PATH}")
        path = HorsiesAttemptsLink().get_link(None, ti_key=instance)
        monkeypatch.undo()
        return path

    return link


def test_the_link_leads_to_the_page_of_its_task_instance(site: Site, link: Callable[[TaskInstanceKey], str]) -> None:
    for run_id in (INSTANCE.run_id, *RUN_IDS):
        instance = TaskInstanceKey(dag_id="sales", run_id=run_id, task_id="t", map_index=3)
        assert api_path(instance) == link(instance).replace("/horsies/", "/horsies/api/")
        page = site.ask(link(instance), headers={"accept": "text/html"})
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert f'data-base="{BASE_PATH}"' in page.text


def test_what_a_page_is_made_of_is_there(site: Site) -> None:
    page = site.ask(f"{PAGES}/").text
    files = [part.split('"')[0] for part in page.split(f'="{PAGES}/static/')[1:]]
    assert sorted({file.rpartition(".")[2] for file in files}) == ["css", "js", "svg"]
    for file in files:
        answer = site.ask(f"{PAGES}/static/{file}")
        assert answer.status_code == 200
        # What a script imports has the digest in its address, too.
        for name in re.findall(r'^import .*"\./(.+)";$', answer.text, re.MULTILINE):
            files.append(f"{file.rpartition('/')[0]}/{name}")
        assert "immutable" in answer.headers["cache-control"]
        stale = site.ask(f"{PAGES}/static/before/{file.partition('/')[2]}")
        assert (stale.content, stale.headers["cache-control"]) == (answer.content, "no-store")


def test_a_failed_task_is_shown_with_its_attempts(
    site: Site, make_hook: MakeHook, served_database: str, fields: Fields, postgres: EmbeddedPostgres
) -> None:
    hook = make_hook(served_database)
    password = postgres.conninfo()["password"]
    policy = RetryPolicy.fixed([1], auto_retry_for=["UNHANDLED_EXCEPTION"], jitter=False)
    spec = TaskSpec(task_name="blow_up", kwargs={"text": f"<b>no log-in with {password}"}, retry_policy=policy)
    sent = hook.submit_task(spec, INSTANCE, AirflowTry(try_number=1))
    hook.wait([sent.task_id], timeout_seconds=60)
    site.connect(fields(served_database))
    answer = site.ask(api_path())
    assert answer.status_code == 200
    shown = answer.json()
    assert {name: shown[name] for name in ("dag_id", "run_id", "task_id", "map_index")} == {
        "dag_id": INSTANCE.dag_id,
        "run_id": INSTANCE.run_id,
        "task_id": INSTANCE.task_id,
        "map_index": -1,
    }
    assert (shown["counts"], shown["past_retention"], shown["positions"]) == ({"FAILED": 1}, 0, 1)
    (submission,) = shown["submissions"]
    assert submission["horsies_task_id"] == sent.task_id
    assert (submission["life"], submission["round"], submission["try_number"], submission["position"]) == (1, 1, 1, 0)
    task = submission["task"]
    assert (task["state"], task["error_code"], task["retry_count"]) == ("FAILED", "UNHANDLED_EXCEPTION", 1)
    assert [(each["attempt"], each["outcome"], each["will_retry"]) for each in submission["attempts"]] == [
        (1, "FAILED", True),
        (2, "FAILED", False),
    ]
    assert submission["submitted_at"] <= task["started_at"] <= task["finished_at"]
    # The api-server knows the password of the connection and masks it in what tasks say.
    assert "no log-in with ***" in json.dumps(submission)
    values = site.ask(api_path(tail="/values"))
    assert "no log-in with ***" in values.json()["traceback"]
    run = site.ask(f"{PAGES}/api/dags/{INSTANCE.dag_id}/gantt/{INSTANCE.run_id}")
    (row,) = run.json()["rows"]
    assert (row["state"], row["error_code"]) == ("FAILED", "UNHANDLED_EXCEPTION")
    for each in (answer, values, run, site.ask(f"{PAGES}/api/failures"), site.ask(api_path(tail="/items"))):
        assert each.status_code == 200
        assert password not in each.text


def test_what_workers_tell_of_an_attempt_is_shown(
    connected: Site, hook: HorsiesHook, postgres: EmbeddedPostgres
) -> None:
    password = postgres.conninfo()["password"]
    (task_id,) = submit(hook)
    begin_attempt(hook, task_id)
    failure = {"error_code": "FLAKY", "error_message": f"no log-in with {password}"}
    end_attempt(hook, task_id, outcome="FAILED", metrics={"jobs": 3, "note": password}, **failure)
    begin_attempt(hook, task_id, 2)
    write_lines(hook, task_id, f"a line with {password}")
    write_progress(hook, task_id, 4, stage=f"stage of {password}")
    answer = connected.ask(api_path())
    (told,) = answer.json()["submissions"]
    first, second = told["attempts"]
    assert (first["outcome"], first["duration_seconds"], first["error_message"]) == (
        "FAILED",
        12.3,
        "no log-in with ***",
    )
    assert first["metrics"] == {"jobs": 3, "note": "***"}
    assert (second["attempt"], second["finished_at"]) == (2, None)
    progress = told["progress"]
    assert (progress["done"], progress["total"], progress["fraction"], progress["stage"]) == (
        4,
        10,
        0.4,
        "stage of ***",
    )
    assert [line["text"] for line in answer.json()["log"]["lines"]] == ["a line with ***"]
    assert "a line with ***" in connected.ask(api_path(tail="/log.txt")).text
    assert password not in answer.text


def test_a_batch_is_paged_and_counted(connected: Site, hook: HorsiesHook) -> None:
    submit(hook, count=3)
    new = submit(hook, count=5, life=2)
    hook.cancel_task(new[4])
    shown = connected.ask(api_path()).json()
    assert (shown["positions"], shown["counts"]) == (5, {"PENDING": 4, "CANCELLED": 1})
    assert [(each["life"], each["task"]["state"]) for each in shown["submissions"]] == [
        (2, "PENDING"),
        (1, "CANCELLED"),
    ]
    page = connected.ask(api_path(tail="/items?limit=4")).json()
    assert (page["total"], [each["position"] for each in page["items"]]) == (5, [0, 1, 2, 3])
    (rest,) = connected.ask(api_path(tail="/items?limit=4&offset=4")).json()["items"]
    assert (rest["position"], rest["life"], rest["state"]) == (4, 2, "CANCELLED")
    # Arguments are shown one task at a time.
    assert "the-argument" not in json.dumps([shown, page, rest])
    assert json.loads(connected.ask(api_path(tail="/values?position=3")).json()["kwargs"])["a"] == 3


def test_mapped_instances_are_told_apart(connected: Site, hook: HorsiesHook) -> None:
    instances = [
        TaskInstanceKey(dag_id="sales", run_id=INSTANCE.run_id, task_id="part", map_index=index) for index in (0, 1)
    ]
    for instance in instances:
        (task_id,) = submit(hook, instance)
        shown = connected.ask(api_path(instance)).json()
        assert (shown["map_index"], shown["submissions"][0]["horsies_task_id"]) == (instance.map_index, task_id)


def test_run_ids_of_every_kind_are_found(connected: Site, hook: HorsiesHook) -> None:
    for run_id in RUN_IDS:
        instance = TaskInstanceKey(dag_id="sales", run_id=run_id, task_id="t")
        submit(hook, instance)
        for tail in ("", "/items", "/values", "/log.txt"):
            assert connected.ask(api_path(instance, tail)).status_code == 200, (run_id, tail)
        assert connected.ask(api_path(instance)).json()["run_id"] == run_id


def test_nothing_submitted_is_told_as_such(connected: Site, hook: HorsiesHook) -> None:
    assert connected.ask(api_path()).json()["submissions"] == []
    submit(hook, TaskInstanceKey(dag_id="sales", run_id=INSTANCE.run_id, task_id="another"))
    assert connected.ask(api_path()).json()["submissions"] == []
    for tail in ("/items", "/values", "/log.txt"):
        answer = connected.ask(api_path(tail=tail))
        assert (answer.status_code, answer.json()["title"]) == (404, "Not Found")


def test_the_namespace_of_the_connection_decides(site: Site, hook: HorsiesHook, database: str, fields: Fields) -> None:
    submit(hook)
    site.connect(fields(database, extra=json.dumps({"namespace": "another"})))
    assert site.ask(api_path()).json()["submissions"] == []


def test_trouble_with_the_database_is_told_without_its_secrets(
    site: Site, hook: HorsiesHook, database: str, fields: Fields
) -> None:
    submit(hook)
    good = fields(database)
    (closed_port,) = free_ports(1)
    for wrong, detail in (
        ({"port": closed_port}, "cannot be reached"),
        ({"schema": "no_such_database"}, "cannot be reached"),
        ({"password": "a-wrong-password"}, "refuses"),
        ({"extra": json.dumps({"no_such_option": 1})}, "could not be read"),
        (None, "no connection 'horsies_ui'"),
    ):
        site.connect(None if wrong is None else {**good, **wrong})
        for path in (api_path(), api_path(tail="/log.txt"), f"{PAGES}/api/failures"):
            answer = site.ask(path)
            assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json"), wrong
            assert detail in answer.json()["detail"]
            for secret in (good["password"], "a-wrong-password", good["host"], "no_such_database", good["login"]):
                assert secret not in answer.text
    site.connect(good)
    assert site.ask(api_path()).status_code == 200


def test_airflow_lists_the_mounted_app(site: Site) -> None:
    listed = site.ask(f"{BASE_PATH}/api/v2/plugins", "admin").json()["plugins"]
    (plugin,) = [each for each in listed if each["name"] == "airflow_horsies"]
    assert [app["url_prefix"] for app in plugin["fastapi_apps"]] == ["/horsies"]
    assert {view["destination"] for view in plugin["external_views"]} == {"nav", "dag_run", "task_instance"}
    errors = site.ask(f"{BASE_PATH}/api/v2/plugins/importErrors", "admin").json()
    assert errors["total_entries"] == 0
