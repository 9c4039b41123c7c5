"""Who may see and do what: every route and every kind of user, in Airflow's real api-server."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
import warnings
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import httpx
import pytest
from fastapi.routing import APIRoute

from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import AirflowTry, TaskInstanceKey, TaskSpec, TaskState
from airflow_horsies.ui.gate import SECURITY_HEADERS
from tests.integration.releases import MOVED
from tests.integration.ui_site import (
    ANOTHER_DAG,
    BASE_PATH,
    DAG_OF_STRANGERS,
    FOREIGN_WRITER,
    HIDDEN,
    HIDDEN_MARK,
    INSTANCE,
    OWN,
    OWN_MARK,
    PAGES,
    REPORT,
    STRANGER,
    USERS,
    Fields,
    Planted,
    Site,
    api_path,
    submit,
)

with warnings.catch_warnings():
    # Airflow's security module brings Starlette's test client along, which warns of the httpx it finds.
    warnings.simplefilter("ignore")
    from airflow_horsies.ui import api
    from airflow_horsies.ui.routes.overview import SHARED_SECONDS

pytestmark = [pytest.mark.parametrize("release", [MOVED], indirect=True), pytest.mark.usefixtures("of_site")]

COLUMNS = (None, STRANGER, FOREIGN_WRITER, "viewer", "writer", "op", "admin")
OF_DAG = (401, 403, 403, 200, 200, 200, 200)
ACTION_ON_DAG = (401, 403, 403, 403, 200, 200, 200)
# Airflow has no run of this DAG to clear, and the body names no request.
REPAIR_OF_DAG = (401, 403, 403, 403, 404, 404, 404)
WITHDRAWAL_OF_DAG = (401, 403, 403, 403, 422, 422, 422)
# What was planted is no workflow, and the address names no node.
WORKFLOW_OF_DAG = (401, 403, 403, 404, 404, 404, 404)
NODE_OF_DAG = (401, 403, 403, 422, 422, 422, 422)
# The body names no workflow.
WORKFLOW_ACTION = (401, 403, 403, 403, 422, 422, 422)
OF_CLUSTER = (401, 200, 200, 200, 200, 200, 200)
OF_CONNECTION = (401, 403, 403, 403, 403, 200, 200)
# Without a token, nobody is told anything, whoever he is.
BY_TOKEN = (404,) * 7
INSTANCE_ROUTE = "/dags/{dag_id}/runs/{run_id:path}/tasks/{task_id}/{map_index}"
# Of a DAG that strangers may not see, and so that a new route without a row is noticed.
TABLE = {
    ("GET", f"/api{INSTANCE_ROUTE}"): OF_DAG,
    ("GET", f"/api{INSTANCE_ROUTE}/items"): OF_DAG,
    ("GET", f"/api{INSTANCE_ROUTE}/values"): OF_DAG,
    ("GET", f"/api{INSTANCE_ROUTE}/log.txt"): OF_DAG,
    ("POST", f"/api{INSTANCE_ROUTE}/cancel"): ACTION_ON_DAG,
    ("POST", f"/api{INSTANCE_ROUTE}/repair"): REPAIR_OF_DAG,
    ("POST", f"/api{INSTANCE_ROUTE}/withdraw-repair"): WITHDRAWAL_OF_DAG,
    ("GET", f"/api{INSTANCE_ROUTE}/workflow"): WORKFLOW_OF_DAG,
    ("GET", f"/api{INSTANCE_ROUTE}/workflow/node"): NODE_OF_DAG,
    ("GET", f"/api{INSTANCE_ROUTE}/workflow/node/log.txt"): NODE_OF_DAG,
    **{
        ("POST", f"/api{INSTANCE_ROUTE}/workflow/{action}"): WORKFLOW_ACTION
        for action in ("pause", "resume", "retry", "cancel", "signal")
    },
    ("GET", "/api/dags/{dag_id}/gantt/{run_id:path}"): OF_DAG,
    ("GET", INSTANCE_ROUTE): OF_DAG,
    ("GET", "/dags/{dag_id}/gantt/{run_id:path}"): OF_DAG,
    ("POST", "/callbacks/{token}"): BY_TOKEN,
    ("POST", "/callbacks/{token}/fail"): BY_TOKEN,
    ("POST", "/callbacks/{token}/heartbeat"): BY_TOKEN,
    ("GET", "/"): OF_CLUSTER,
    ("GET", "/api/overview"): OF_CLUSTER,
    ("GET", "/api/failures"): OF_CLUSTER,
    ("GET", "/static/{digest}/{name:path}"): OF_CLUSTER,
    ("GET", "/monitoring/{path:path}"): OF_CONNECTION,
    ("GET", "/reports/{name}/{start}/{end}"): OF_CONNECTION,
    ("GET", "/tasks"): OF_CONNECTION,
    ("GET", "/api/known"): OF_CONNECTION,
}


@pytest.fixture
def seeded(site: Site, fields: Fields, planted: Planted) -> Site:
    site.connect(fields(planted.database))
    return site


def path_of(route: str, instance: TaskInstanceKey) -> str:
    named = {
        "reports/{name}": f"reports/{REPORT.name}",
        "{start}": REPORT.period_start.isoformat(),
        "{end}": REPORT.period_end.isoformat(),
        "{dag_id}": instance.dag_id,
        "{run_id:path}": instance.run_id,
        "{task_id}": instance.task_id,
        "{map_index}": str(instance.map_index),
        "{digest}": "any",
        "{name:path}": "common/dom.js",
        "{path:path}": "",
        "{token}": "hcb_of_nobody",
    }
    for name, value in named.items():
        route = route.replace(name, value)
    return PAGES + route


def ask_route(site: Site, method: str, path: str, user: str | None, *, with_cookie: bool = False) -> httpx.Response:
    given: dict[str, Any] = {"json": {}, "headers": {"origin": site.origin}} if method == "POST" else {}
    return site.ask(path, user, method, with_cookie=with_cookie, **given)


def require_security_headers(answer: httpx.Response) -> None:
    for name, value in SECURITY_HEADERS.items():
        given = answer.headers.get_list(name.decode())
        assert len(given) == 1, (answer.request.url, name)
        # A page may be framed and run its script; a file whose address changes with it may be kept.
        own = answer.is_success and name in (b"content-security-policy", b"cache-control")
        assert own or given == [value.decode()] or "text/html" in answer.headers["content-type"], answer.request.url


def test_every_route_has_a_row_in_the_table(release: str) -> None:
    routes = {(method, each.path) for each in api.app.routes if isinstance(each, APIRoute) for method in each.methods}
    assert routes == set(TABLE)
    assert set(COLUMNS) == {None, *USERS}


@pytest.mark.parametrize(("method", "route"), TABLE, ids=lambda part: part)
def test_who_may_use_which_route(seeded: Site, method: str, route: str) -> None:
    path = path_of(route, HIDDEN)
    for user, status in zip(COLUMNS, TABLE[method, route], strict=True):
        for query in ("", "?limit=1", f"?dag_id={DAG_OF_STRANGERS}"):
            for with_cookie in (False, True):
                answer = ask_route(seeded, method, path + query, user, with_cookie=with_cookie)
                assert answer.status_code == status, (user, query, with_cookie, answer.text)
                require_security_headers(answer)
                if status != 200:
                    assert answer.headers["content-type"] == "application/problem+json"
                if user in (None, STRANGER, FOREIGN_WRITER):
                    assert HIDDEN_MARK not in answer.text.lower()


@pytest.mark.parametrize(("method", "route"), [row for row in TABLE if "{dag_id}" in row[1]], ids=lambda part: part)
def test_strangers_may_use_the_routes_of_their_own_dag(seeded: Site, method: str, route: str) -> None:
    for user, status in (
        (None, 401),
        (STRANGER, 403 if method == "POST" else TABLE[method, route][-1]),
        (FOREIGN_WRITER, TABLE[method, route][-1]),
    ):
        assert ask_route(seeded, method, path_of(route, OWN), user).status_code == status, user


@pytest.mark.parametrize("user", [None, STRANGER, FOREIGN_WRITER])
def test_a_refused_page_tells_nothing_of_what_is_behind_it(seeded: Site, user: str | None) -> None:
    answer = seeded.ask(path_of(INSTANCE_ROUTE, HIDDEN), user, headers={"accept": "text/html"})
    assert answer.status_code == (401 if user is None else 403)
    assert answer.headers["content-type"].startswith("text/html")
    assert HIDDEN.task_id not in answer.text
    require_security_headers(answer)


def test_reports_are_listed_for_those_who_may_open_them(seeded: Site) -> None:
    for user in (STRANGER, FOREIGN_WRITER, "viewer", "writer"):
        assert seeded.ask(f"{PAGES}/api/overview", user).json()["reports"] == []
    (report,) = seeded.ask(f"{PAGES}/api/overview", "op").json()["reports"]
    assert (report["name"], report["start"]) == (REPORT.name, REPORT.period_start.isoformat())
    page = seeded.ask(report["url"], "op")
    assert page.text == f"<p>{HIDDEN_MARK} and {OWN_MARK}</p>"
    # Whatever the names of tasks bring into it, it runs no script.
    assert page.headers["content-security-policy"].endswith("; sandbox")
    assert "script-src" not in page.headers["content-security-policy"]
    other = report["url"].replace(REPORT.name, "another")
    assert seeded.ask(other, "op").status_code == 404


@pytest.mark.parametrize("route", ["/", INSTANCE_ROUTE, "/reports/{name}/{start}/{end}"])
def test_who_opens_a_page_without_a_session_is_sent_to_the_log_in_and_back(seeded: Site, route: str) -> None:
    path = path_of(route, INSTANCE)
    answer = seeded.ask(path, None, headers={"accept": "text/html", "sec-fetch-dest": "document"})
    assert answer.status_code == 303
    at_airflow = urlsplit(answer.headers["location"])
    assert at_airflow.path == f"{BASE_PATH}/api/v2/auth/login"
    (next_page,) = parse_qs(at_airflow.query)["next"]
    assert unquote(next_page) == unquote(path)
    require_security_headers(answer)
    log_in = seeded.ask(answer.headers["location"], None)
    assert log_in.status_code == 307
    assert parse_qs(urlsplit(log_in.headers["location"]).query)["next"] == [next_page]


@pytest.mark.parametrize("path", ["/api/overview", "/api/failures"])
def test_strangers_see_only_their_own_where_all_dags_are_shown(seeded: Site, planted: Planted, path: str) -> None:
    time.sleep(SHARED_SECONDS)
    told = (HIDDEN_MARK, HIDDEN.dag_id, HIDDEN.run_id, HIDDEN.task_id, *planted.hidden_ids)
    for user in (STRANGER, FOREIGN_WRITER):
        answer = seeded.ask(PAGES + path, user)
        assert OWN_MARK in answer.text
        assert [text for text in told if text in answer.text.lower()] == []
    for user in ("viewer", "admin"):
        answer = seeded.ask(PAGES + path, user)
        assert HIDDEN_MARK in answer.text
        assert OWN_MARK in answer.text


def test_only_who_may_write_a_dag_is_told_that_he_can_act(seeded: Site) -> None:
    for user, can_act in (("viewer", False), ("writer", True), ("op", True), ("admin", True)):
        assert seeded.ask(api_path(HIDDEN), user).json()["can_act"] is can_act, user
        failures = seeded.ask(f"{PAGES}/api/failures", user).json()["failures"]
        assert {(each["dag_id"], each["can_act"]) for each in failures} == {
            (HIDDEN.dag_id, can_act),
            (OWN.dag_id, can_act),
        }
    for user, can_act in ((STRANGER, False), (FOREIGN_WRITER, True)):
        assert seeded.ask(api_path(OWN), user).json()["can_act"] is can_act, user
        (failure,) = seeded.ask(f"{PAGES}/api/failures", user).json()["failures"]
        assert (failure["dag_id"], failure["can_act"]) == (OWN.dag_id, can_act)


JSON = {"content-type": "application/json"}
HIDDEN_TAIL = f"runs/{HIDDEN.run_id}/tasks/{HIDDEN.task_id}/-1"
TRICKS = (
    f"/api/dags/{HIDDEN.dag_id}/{HIDDEN_TAIL}?dag_id={OWN.dag_id}",
    f"/api/dags/{HIDDEN.dag_id}/{HIDDEN_TAIL}?dag_id={OWN.dag_id}&dag_id={HIDDEN.dag_id}",
    f"/api/dags/{HIDDEN.dag_id}/{HIDDEN_TAIL};dag_id={OWN.dag_id}",
    f"/api/dags/{OWN.dag_id}/{HIDDEN_TAIL}",
    f"/api/dags/{OWN.dag_id}/{HIDDEN_TAIL}?dag_id={HIDDEN.dag_id}",
    f"/api/dags/{OWN.dag_id}/gantt/{HIDDEN.run_id}",
    f"/api/dags/~/{HIDDEN_TAIL}",
    f"/api/dags/%7E/{HIDDEN_TAIL}?dag_id={OWN.dag_id}",
    f"/dags/~/{HIDDEN_TAIL}?dag_id={OWN.dag_id}",
    f"/api/dags/~/gantt/{HIDDEN.run_id}",
    f"/api/dags//{HIDDEN_TAIL}?dag_id={OWN.dag_id}",
    f"/api/dags/%20/{HIDDEN_TAIL}?dag_id={OWN.dag_id}",
    f"/api/dags/{HIDDEN.dag_id.upper()}/{HIDDEN_TAIL}",
    f"/api/dags/{HIDDEN.dag_id}%00/{HIDDEN_TAIL}",
    f"/api/dags/{HIDDEN.dag_id}%20/{HIDDEN_TAIL}",
    f"/api/dags/%68idden_dag/{HIDDEN_TAIL}",
    f"/api/dags/{OWN.dag_id}%2F..%2F{HIDDEN.dag_id}/{HIDDEN_TAIL}",
    f"/api/dags/{OWN.dag_id}/../{HIDDEN.dag_id}/{HIDDEN_TAIL}",
    f"/api/dags/{OWN.dag_id}/runs/x/../../../{HIDDEN.dag_id}/{HIDDEN_TAIL}",
    f"/api/dags/{OWN.dag_id}/runs/x%2F..%2F..%2F..%2F{HIDDEN.dag_id}%2F{HIDDEN_TAIL}",
    f"/api/dags/{OWN.dag_id}/runs/x/tasks/y/-1//dags/{HIDDEN.dag_id}/{HIDDEN_TAIL}",
    f"//api//dags//{HIDDEN.dag_id}//{HIDDEN_TAIL}",
    f"//api/dags/{HIDDEN.dag_id}/{HIDDEN_TAIL}",
    f"/./api/dags/{HIDDEN.dag_id}/{HIDDEN_TAIL}",
    f"/static/x/../../api/dags/{HIDDEN.dag_id}/{HIDDEN_TAIL}",
    f"/api/dags%2F{HIDDEN.dag_id}%2F{HIDDEN_TAIL.replace('/', '%2F')}",
    f"/api/dags/{HIDDEN.dag_id}/{HIDDEN_TAIL}/",
    f"/monitoring/../api/dags/{HIDDEN.dag_id}/{HIDDEN_TAIL}",
    "/monitoring/api/tasks",
    "/monitoring//api/tasks",
    "/monitoring/%2e%2e/monitoring/api/tasks",
)


def _says_nothing(text: str) -> bool:
    """A task instance or a run of their own DAG, under whatever name, that has submitted nothing."""
    told = json.loads(text)
    return told["dag_id"] == OWN.dag_id and not told.get("submissions") and not told.get("rows")


@pytest.mark.parametrize("trick", TRICKS)
def test_no_path_leads_around_the_right_to_a_dag(seeded: Site, planted: Planted, trick: str) -> None:
    for user in (None, STRANGER, FOREIGN_WRITER):
        for tail in ("", "/values", "/log.txt"):
            path, mark, query = trick.partition("?")
            status, text = seeded.ask_as_is(f"{PAGES}{path}{tail}{mark}{query}", user)
            assert status in (401, 403, 404, 422) or _says_nothing(text), (user, tail, text)
            assert not any(told in text for told in (HIDDEN_MARK, *planted.hidden_ids))
        status, _ = seeded.ask_as_is(f"{PAGES}{trick}", user, "POST", **JSON)
        assert status in (401, 403, 404, 405, 422)


def test_no_header_leads_around_the_right_to_a_dag(seeded: Site) -> None:
    hidden, own = api_path(HIDDEN), api_path(OWN)
    for name in ("X-Original-URL", "X-Rewrite-URL", "X-Forwarded-Uri", "X-Forwarded-Prefix", "X-Forwarded-Path"):
        assert HIDDEN_MARK not in seeded.ask_as_is(own, STRANGER, **{name: hidden})[1]
        assert seeded.ask_as_is(hidden, STRANGER, **{name: own})[0] == 403
    for name in ("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"):
        assert seeded.ask_as_is(f"{hidden}/cancel", "viewer", **{name: "POST"})[0] == 405
    for name in ("X-Remote-User", "X-Forwarded-User", "Remote-User", "X-Forwarded-For"):
        assert seeded.ask_as_is(hidden, None, **{name: "admin"})[0] == 401


@pytest.mark.parametrize("user", COLUMNS)
def test_no_route_has_another_method(seeded: Site, user: str | None) -> None:
    for method, route in TABLE:
        for other in {"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE"} - {method}:
            answer = seeded.ask(path_of(route, HIDDEN), user, other)
            assert answer.status_code == 405, (other, route)
            assert HIDDEN_MARK not in answer.text
            assert not any(name.startswith("access-control") for name in answer.headers)
            require_security_headers(answer)


@pytest.mark.parametrize("user", COLUMNS)
def test_there_is_nothing_else_to_see(site: Site, user: str | None) -> None:
    for path in (
        "/docs",
        "/redoc",
        "/openapi.json",
        "/api",
        "/static",
        "/static/",
        "/monitoring",
        "/api/dags/~/runs/r/tasks/t/-1",
        "/api/dags/a%00b/runs/r/tasks/t/-1",
        f"/api/dags//runs/r/tasks/t/-1?dag_id={DAG_OF_STRANGERS}",
    ):
        answer = site.ask(f"{PAGES}{path}", user)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json"), path
        require_security_headers(answer)


@pytest.mark.parametrize(
    "path",
    [
        "/static/x/../api.py",
        "/static/x/..%2Fapi.py",
        "/static/x/%2e%2e%2fapi.py",
        "/static/x/..%5Capi.py",
        "/static/../access.py",
        "/static/x//etc/passwd",
        "/static/x/%2Fetc%2Fpasswd",
        "/static/x/run.js%00.css",
        "/static/x/",
        "/static/x/common",
        "/static/x/common/",
        "/static/x/common/../../api.py",
        "/static/x/common/..%2F..%2Fapi.py",
        "/static/x/payloads.d.ts",
        "/static/x/RUN.JS",
        "/static/x/__init__.py",
    ],
)
def test_no_other_file_is_served(site: Site, path: str) -> None:
    for user in ("viewer", "admin"):
        assert site.ask_as_is(f"{PAGES}{path}", user)[0] == 404


def test_a_wrong_token_is_refused(site: Site) -> None:
    for route in ("/", "/api/overview", "/static/x/common/dom.js", "/monitoring/", api_path().removeprefix(PAGES)):
        for headers, status in (
            ({"Authorization": "Bearer not.a.token"}, 403),
            ({"Authorization": "Basic YWRtaW46YWRtaW4="}, 401),
            ({"Cookie": "_token=not.a.token"}, 403),
            # What is said aloud goes before the cookie.
            ({"Authorization": "Bearer not.a.token", **site.cookie("admin")}, 403),
        ):
            assert site.ask(f"{PAGES}{route}", None, headers=headers).status_code == status, (route, headers)


def audited(site: Site, run_id: str) -> list[dict[str, Any]]:
    """What Airflow's audit log has of the cancels of a run."""
    query = {"event": "horsies_cancel", "run_id": run_id, "limit": 100}
    found = site.ask(f"{BASE_PATH}/api/v2/eventLogs", "admin", params=query).raise_for_status().json()
    return [{name: each[name] for name in ("owner", "dag_id", "run_id", "task_id")} for each in found["event_logs"]]


def test_only_who_may_write_the_dag_cancels_and_airflow_keeps_who_did(connected: Site, hook: HorsiesHook) -> None:
    instance = TaskInstanceKey(dag_id="sales", run_id="cancelled_by_whom", task_id="load")
    ids = submit(hook, instance, count=3)
    path = api_path(instance, "/cancel")
    for user, status in ((None, 401), (STRANGER, 403), (FOREIGN_WRITER, 403), ("viewer", 403)):
        for with_cookie in (False, True):
            answer = ask_route(connected, "POST", path, user, with_cookie=with_cookie)
            assert answer.status_code == status
    assert set(hook.read_states(ids).values()) == {TaskState.PENDING}
    assert audited(connected, instance.run_id) == []
    for position, user in enumerate(("writer", "op", "admin")):
        body = {"item": {"position": position, "horsies_task_id": ids[position], "number": None}}
        answer = connected.ask(path, user, "POST", json=body, headers={"origin": connected.origin}, with_cookie=True)
        assert answer.json() == {"outcomes": {"CANCELLED": 1}, "past_retention": 0}
        assert hook.read_states(ids)[ids[position]] is TaskState.CANCELLED
    again = connected.ask(path, "writer", "POST", json={})
    assert again.json() == {"outcomes": {"ALREADY_CANCELLED": 3}, "past_retention": 0}
    entries = audited(connected, instance.run_id)
    assert sorted(each["owner"] for each in entries) == ["admin", "op", "writer", "writer"]
    assert {(each["dag_id"], each["run_id"], each["task_id"]) for each in entries} == {
        (instance.dag_id, instance.run_id, instance.task_id)
    }


def test_what_another_dag_shares_is_not_cancelled(connected: Site, hook: HorsiesHook) -> None:
    spec = TaskSpec(task_name="add", kwargs={"a": 1, "b": 1}, idempotency_key="shared")
    hidden, own = (
        TaskInstanceKey(dag_id=dag_id, run_id="shared", task_id="load") for dag_id in ("sales", DAG_OF_STRANGERS)
    )
    (task_id,) = {hook.submit_task(spec, each, AirflowTry(try_number=1)).task_id for each in (hidden, own)}
    for instance, status in ((hidden, 403), (own, 200)):
        answer = connected.ask(api_path(instance, "/cancel"), FOREIGN_WRITER, "POST", json={})
        assert answer.status_code == status
    assert answer.json() == {"outcomes": {"STILL_WANTED": 1}, "past_retention": 0}
    assert hook.read_task(task_id).state is TaskState.PENDING
    last = connected.ask(api_path(hidden, "/cancel"), "writer", "POST", json={})
    assert last.json() == {"outcomes": {"CANCELLED": 1}, "past_retention": 0}


def test_nothing_is_cancelled_from_a_page_elsewhere(connected: Site, hook: HorsiesHook) -> None:
    instance = TaskInstanceKey(dag_id="sales", run_id="from_elsewhere", task_id="load")
    ids = submit(hook, instance)
    path = api_path(instance, "/cancel")
    for headers, status in (
        (JSON, 403),
        ({**JSON, "origin": "http://elsewhere.test"}, 403),
        ({**JSON, "origin": "null"}, 403),
        ({**JSON, "origin": ""}, 403),
        ({**JSON, "origin": f"{connected.origin}.elsewhere.test"}, 403),
        ({**JSON, "origin": "http://elsewhere.test", "x-forwarded-host": "elsewhere.test"}, 403),
        ({"content-type": "application/x-www-form-urlencoded", "origin": connected.origin}, 415),
        ({"content-type": "multipart/form-data; boundary=x", "origin": connected.origin}, 415),
        ({"content-type": "text/plain", "origin": connected.origin}, 415),
        ({"origin": connected.origin}, 415),
    ):
        answer = connected.ask(path, "writer", "POST", headers=headers, content=b"{}", with_cookie=True)
        assert answer.status_code == status, (headers, answer.text)
        require_security_headers(answer)
    # A token of one's own does not make a page elsewhere trusted.
    elsewhere = {**JSON, "origin": "http://elsewhere.test"}
    assert connected.ask(path, "writer", "POST", headers=elsewhere, content=b"{}").status_code == 403
    assert set(hook.read_states(ids).values()) == {TaskState.PENDING}
    assert audited(connected, instance.run_id) == []


@pytest.mark.parametrize(
    "body",
    [
        {"dag_id": ANOTHER_DAG},
        {"task_id": "another_task", "position": 0},
        {"run_id": ["a list"]},
        {"task_id": "\x00"},
        {"position": 0},
        {"item": {"position": -1, "horsies_task_id": "x", "number": None}},
        {"item": {"position": 2**31, "horsies_task_id": "x", "number": None}},
        {"item": {"position": "x", "horsies_task_id": "x", "number": None}},
        {"item": {"position": 0, "horsies_task_id": "x" * 101, "number": None}},
        {"item": {"position": 0, "horsies_task_id": "x"}},
        [],
        None,
        "{}",
    ],
    ids=repr,
)
def test_a_body_that_is_not_asked_for_does_nothing_and_is_not_kept(
    connected: Site, hook: HorsiesHook, body: Any
) -> None:
    instance = TaskInstanceKey(dag_id="sales", run_id=f"odd_body {body!r}", task_id="load")
    ids = submit(hook, instance)
    answer = connected.ask(api_path(instance, "/cancel"), "writer", "POST", content=json.dumps(body), headers=JSON)
    assert answer.status_code == 422
    assert set(hook.read_states(ids).values()) == {TaskState.PENDING}
    assert audited(connected, instance.run_id) == []
    kept = connected.ask(f"{BASE_PATH}/api/v2/eventLogs?event=horsies_cancel&limit=1000", "admin").json()
    assert "another" not in json.dumps(kept)


def test_ids_longer_than_those_of_airflow_are_not_found(connected: Site, hook: HorsiesHook) -> None:
    long = "x" * 1_000
    for instance in (
        TaskInstanceKey(dag_id=long, run_id="r", task_id="t"),
        TaskInstanceKey(dag_id="sales", run_id=long, task_id="t"),
        TaskInstanceKey(dag_id="sales", run_id="r", task_id=long),
    ):
        assert connected.ask(api_path(instance)).status_code == 404
        assert connected.ask(api_path(instance, "/cancel"), "writer", "POST", json={}).status_code == 404


def test_upstreams_monitoring_only_looks_and_keeps_its_secrets(
    seeded: Site, planted: Planted, postgres: EmbeddedPostgres
) -> None:
    root = f"{PAGES}/monitoring"
    page = seeded.ask(f"{root}/", "op")
    (inline,) = re.findall(r"<script>(.*?)</script>", page.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
    scripts = page.headers["content-security-policy"].partition("script-src ")[2].partition(";")[0]
    assert scripts == f"'self' 'sha256-{digest}'"
    assert f'<base href="{root}/">' in page.text
    answers = [page]
    assets = re.findall(r'(?:src|href)="\./(assets/[^"]+)"', page.text)
    assert assets
    for path in (*assets, "a/path/of/the/page"):
        answers.append(seeded.ask(f"{root}/{path}", "op"))
        assert answers[-1].status_code == 200
    for path in ("../../../../../../../../../etc/passwd", "..%2f..%2f..%2fapp.py", "%2e%2e/app.py", "/etc/passwd"):
        assert seeded.ask_as_is(f"{root}/{path}", "op") == (200, page.text)
    meta = seeded.ask(f"{root}/api/meta", "op")
    assert (meta.status_code, meta.json()["actions_enabled"], meta.json()["can_act"]) == (200, False, False)
    tasks = seeded.ask(f"{root}/api/tasks", "op")
    assert tasks.status_code == 200
    assert planted.hidden_ids[0] in tasks.text
    answers += [meta, tasks, *(seeded.ask(f"{root}/api/{name}", "admin") for name in ("workers", "workflows", "nope"))]
    task = seeded.ask(f"{root}/api/tasks/{planted.hidden_ids[0]}", "admin")
    assert task.status_code == 200
    answers.append(task)
    for method in ("POST", "PUT", "DELETE"):
        answers.append(seeded.ask(f"{root}/api/tasks/{planted.hidden_ids[0]}/cancel", "admin", method, json={}))
        assert answers[-1].status_code == 405
    password = postgres.conninfo()["password"]
    for answer in answers:
        require_security_headers(answer)
        assert password not in answer.text
        assert "postgresql" not in answer.text or "javascript" in answer.headers["content-type"]


def test_monitoring_of_a_database_that_is_gone_keeps_its_secrets(site: Site, fields: Fields) -> None:
    good = fields("no_such_database", password="a-secret-of-the-connection")
    for wrong in (good, {**good, "host": "no-such-host.invalid"}):
        site.connect(wrong)
        for path in ("", "api/meta", "api/tasks", "api/workers"):
            answer = site.ask(f"{PAGES}/monitoring/{path}", "op")
            assert answer.status_code in (200, 500, 502, 503)
            assert not any(secret in answer.text for secret in (good["password"], "no_such_database", wrong["host"]))
            require_security_headers(answer)


def test_the_log_of_the_api_server_keeps_the_secrets(seeded: Site, postgres: EmbeddedPostgres) -> None:
    assert seeded.ask(f"{PAGES}/monitoring/", "op").status_code == 200
    log = seeded.written_log()
    assert "/horsies/" in log
    assert postgres.conninfo()["password"] not in log
    assert "a-secret-of-the-connection" not in log
