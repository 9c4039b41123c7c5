"""The routes in Airflow's real api-server, below a base path, with real users and tokens."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from airflow_horsies.embedded.airflow import EmbeddedAirflow
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.embedded.process import GuardedProcess, free_ports
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.links import HorsiesAttemptsLink
from airflow_horsies.models import RetryPolicy, TaskInstanceKey, TaskSpec
from airflow_horsies.ui.gate import SECURITY_HEADERS
from tests.integration.conftest import MakeHook
from tests.integration.releases import MOVED
from tests.integration.test_attempts import begin_attempt, end_attempt, write_lines, write_progress

HERE = Path(__file__).parent
BASE_PATH = "/team/airflow"
# As auth_by_dag.py has them, which only the api-server imports.
STRANGER = "stranger"
DAG_OF_STRANGER = "dag_of_stranger"
USERS = {"admin": "admin", "op": "op", "viewer": "viewer", STRANGER: "viewer"}
START_SECONDS = 120
INSTANCE = TaskInstanceKey(dag_id="sales", run_id="scheduled__2026-01-02T03:04:05+00:00", task_id="group.load")

# What differs between releases is the wire, which has tests of its own.
pytestmark = pytest.mark.parametrize("release", [MOVED], indirect=True)


class Site:
    """The api-server and its users; a user of None is nobody."""

    def __init__(self, airflow: EmbeddedAirflow) -> None:
        self._client = httpx.Client(base_url=airflow.base_url.removesuffix(BASE_PATH), timeout=30, trust_env=False)
        self._tokens = {user: self._log_in(user, airflow.password(user)) for user in USERS}

    def _log_in(self, user: str, password: str) -> str:
        given = {"username": user, "password": password}
        answer = self._client.post(f"{BASE_PATH}/auth/token", json=given).raise_for_status()
        return str(answer.json()["access_token"])

    def ask(self, path: str, user: str | None = "viewer", method: str = "GET", **given: Any) -> httpx.Response:
        headers = {} if user is None else {"Authorization": f"Bearer {self._tokens[user]}"}
        return self._client.request(method, path, headers=headers, **given)

    def ask_with_cookie(self, path: str, user: str) -> httpx.Response:
        return self._client.get(path, headers={"Cookie": f"_token={self._tokens[user]}"})

    def connect(self, fields: Mapping[str, Any] | None) -> None:
        """Point the connection of the api-server somewhere else; None removes it."""
        path = f"{BASE_PATH}/api/v2/connections"
        self.ask(f"{path}/horsies_ui", "admin", "DELETE")
        if fields is not None:
            body = {"connection_id": "horsies_ui", "conn_type": "horsies", **fields}
            self.ask(path, "admin", "POST", json=body).raise_for_status()

    def close(self) -> None:
        self._client.close()


@pytest.fixture(scope="module")
def site(release: str, postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Depends on the release as all its tests do: pytest groups by it, and would else start the server twice."""
    postgres.create_database("airflow_of_ui")
    airflow = EmbeddedAirflow(
        tmp_path_factory.mktemp("airflow"),
        database_url=postgres.dsn("airflow_of_ui", scheme="postgresql+psycopg2"),
        dags_folder=tmp_path_factory.mktemp("dags"),
        users=USERS,
        base_path=BASE_PATH,
        settings={
            "AIRFLOW__CORE__AUTH_MANAGER": "auth_by_dag.AuthByDag",
            "AIRFLOW__HORSIES__CONN_ID": "horsies_ui",
            "PYTHONPATH": str(HERE),
        },
    )
    airflow.migrate()
    server = GuardedProcess(
        "Airflow's api-server",
        [sys.executable, "-m", "airflow", "api-server"],
        log=airflow.folder / "logs" / "api-server.log",
        environ=airflow.environ(),
        folder=airflow.folder,
    )
    with server:
        give_up = time.monotonic() + START_SECONDS
        while not airflow.health():
            assert server.running and time.monotonic() < give_up, server.log_tail(40)
            time.sleep(0.2)
        site = Site(airflow)
        yield site
        site.close()


@pytest.fixture
def fields(postgres: EmbeddedPostgres) -> Callable[..., dict[str, Any]]:
    """The connection to a database, with what is wrong about it."""

    def fields(database: str, **wrong: Any) -> dict[str, Any]:
        info = postgres.conninfo(database)
        return {
            "host": info["host"],
            "port": int(info["port"]),
            "login": info["user"],
            "password": info["password"],
            "schema": info["dbname"],
            **wrong,
        }

    return fields


@pytest.fixture
def connected(site: Site, fields: Callable[..., dict[str, Any]], database: str) -> Site:
    site.connect(fields(database))
    return site


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    def link(instance: TaskInstanceKey = INSTANCE) -> str:
        monkeypatch.setenv("AIRFLOW__API__BASE_URL", f"http://airflow.test{BASE_PATH}")
        path = HorsiesAttemptsLink().get_link(None, ti_key=instance)
        monkeypatch.undo()
        return path

    return link


def submit(hook: HorsiesHook, instance: TaskInstanceKey = INSTANCE, *, count: int = 1, life: int = 1) -> list[str]:
    specs = [TaskSpec(task_name="add", kwargs={"a": n, "b": "the-argument"}) for n in range(count)]
    return [sent.task_id for sent in hook.submit_many(specs, instance, life=life, try_number=life)]


# Every route and who gets what: not logged in, logged in without a right to the DAG, and with one.
def test_who_may_see_what_a_task_instance_submitted(
    connected: Site, hook: HorsiesHook, link: Callable[..., str]
) -> None:
    submit(hook)
    for user, status in ((None, 401), (STRANGER, 403), ("viewer", 200), ("op", 200), ("admin", 200)):
        for query in ("", "?limit=1", f"?dag_id={DAG_OF_STRANGER}"):
            answer = connected.ask(link() + query, user)
            assert answer.status_code == status, (user, query)
            assert ("submissions" in answer.json()) is (status == 200)
            for name, value in SECURITY_HEADERS.items():
                assert answer.headers[name.decode()] == value.decode()
            if user is not None:
                assert connected.ask_with_cookie(link() + query, user).status_code == status


def test_a_user_sees_the_dag_that_is_his(connected: Site, hook: HorsiesHook, link: Callable[..., str]) -> None:
    own = TaskInstanceKey(dag_id=DAG_OF_STRANGER, run_id="a/runs/b/tasks/c/1", task_id="t")
    submit(hook, own)
    assert connected.ask(link(own), STRANGER).status_code == 200
    # Whatever the path is made to look like, the DAG that is asked about is the one that is shown.
    other = link().partition("/dags/")[2]
    for path in (f"{link(own)}/../../../../../{other}", f"{link(own)}%2F..%2F..%2F{other}", link(own) + "//" + other):
        answer = connected.ask(path, STRANGER)
        assert answer.status_code in (403, 404), path


def test_a_wrong_token_is_refused(site: Site, link: Callable[..., str]) -> None:
    answer = httpx.get(
        str(site.ask(link()).request.url), headers={"Authorization": "Bearer not.a.token"}, trust_env=False
    )
    assert answer.status_code == 403


@pytest.mark.parametrize("user", [None, STRANGER, "viewer", "admin"])
def test_there_is_nothing_else_to_see(site: Site, user: str | None) -> None:
    for path in (
        "/",
        "/docs",
        "/redoc",
        "/openapi.json",
        "/api",
        "/api/dags/~/runs/r/tasks/t/-1",
        "/api/dags/a%00b/runs/r/tasks/t/-1",
        f"/api/dags//runs/r/tasks/t/-1?dag_id={DAG_OF_STRANGER}",
    ):
        answer = site.ask(f"{BASE_PATH}/horsies{path}", user)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json"), path


def test_nobody_can_change_anything(site: Site, link: Callable[..., str]) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert site.ask(link(), "admin", method).status_code == 405


def test_a_failed_task_is_shown_with_its_attempts(
    site: Site,
    make_hook: MakeHook,
    served_database: str,
    fields: Callable[..., dict[str, Any]],
    link: Callable[..., str],
    postgres: EmbeddedPostgres,
) -> None:
    hook = make_hook(served_database)
    password = postgres.conninfo()["password"]
    policy = RetryPolicy.fixed([1], auto_retry_for=["UNHANDLED_EXCEPTION"], jitter=False)
    spec = TaskSpec(task_name="blow_up", kwargs={"text": f"<b>no log-in with {password}"}, retry_policy=policy)
    sent = hook.submit(spec, INSTANCE, life=1, try_number=1)
    hook.wait([sent.task_id], timeout_seconds=60)
    site.connect(fields(served_database))
    answer = site.ask(link())
    assert answer.status_code == 200
    shown = answer.json()
    assert {name: shown[name] for name in ("dag_id", "run_id", "task_id", "map_index")} == {
        "dag_id": INSTANCE.dag_id,
        "run_id": INSTANCE.run_id,
        "task_id": INSTANCE.task_id,
        "map_index": -1,
    }
    assert (shown["counts"], shown["past_retention"], shown["total"]) == ({"FAILED": 1}, 0, 1)
    (submission,) = shown["submissions"]
    assert submission["horsies_task_id"] == sent.task_id
    assert (submission["life"], submission["round"], submission["try_number"], submission["position"]) == (1, 1, 1, 0)
    task = submission["task"]
    assert (task["state"], task["error_code"], task["retry_count"]) == ("FAILED", "UNHANDLED_EXCEPTION", 1)
    assert [(each["attempt"], each["outcome"], each["will_retry"]) for each in task["attempts"]] == [
        (1, "FAILED", True),
        (2, "FAILED", False),
    ]
    assert task["sent_at"] <= task["started_at"] <= task["finished_at"]
    # The api-server knows the password of the connection and masks it in what tasks say.
    assert "no log-in with ***" in json.dumps(task)
    assert password not in answer.text


def test_what_workers_tell_of_an_attempt_is_shown(
    connected: Site, hook: HorsiesHook, link: Callable[..., str], postgres: EmbeddedPostgres
) -> None:
    password = postgres.conninfo()["password"]
    running, silent = submit(hook, count=2)
    begin_attempt(hook, running)
    failure = {"error_code": "FLAKY", "error_message": f"no log-in with {password}"}
    end_attempt(hook, running, outcome="FAILED", metrics={"jobs": 3, "note": password}, **failure)
    begin_attempt(hook, running, 2)
    write_lines(hook, running, "a line is not part of it")
    write_progress(hook, running, 4, stage=f"stage of {password}")
    answer = connected.ask(link())
    told, nothing = answer.json()["submissions"]
    first, second = told["attempt_records"]
    assert (first["outcome"], first["duration_seconds"], first["error_message"]) == (
        "FAILED",
        12.3,
        "no log-in with ***",
    )
    assert first["metrics"] == {"jobs": 3, "note": "***"}
    assert (second["attempt"], second["outcome"], second["finished_at"]) == (2, None, None)
    progress = told["progress"]
    assert (progress["done"], progress["total"], progress["fraction"], progress["stage"]) == (
        4,
        10,
        0.4,
        "stage of ***",
    )
    assert (nothing["horsies_task_id"], nothing["attempt_records"], nothing["progress"]) == (silent, [], None)
    assert "a line is not" not in answer.text


def test_a_batch_is_paged_and_counted(connected: Site, hook: HorsiesHook, link: Callable[..., str]) -> None:
    old = submit(hook, count=3)
    new = submit(hook, count=5, life=2)
    hook.cancel(new[4])
    shown = connected.ask(link() + "?limit=4").json()
    assert (shown["total"], shown["counts"]) == (8, {"PENDING": 4, "CANCELLED": 4})
    assert [each["horsies_task_id"] for each in shown["submissions"]] == new[:4]
    assert [each["position"] for each in shown["submissions"]] == [0, 1, 2, 3]
    rest = connected.ask(link() + "?limit=4&offset=4").json()
    assert [each["horsies_task_id"] for each in rest["submissions"]] == [new[4], *old]
    assert rest["submissions"][0]["task"]["state"] == "CANCELLED"
    assert "the-argument" not in json.dumps(shown)


def test_mapped_instances_are_told_apart(connected: Site, hook: HorsiesHook, link: Callable[..., str]) -> None:
    instances = [
        TaskInstanceKey(dag_id="sales", run_id=INSTANCE.run_id, task_id="part", map_index=index) for index in (0, 1)
    ]
    for instance in instances:
        (task_id,) = submit(hook, instance)
        shown = connected.ask(link(instance)).json()
        assert (shown["map_index"], shown["submissions"][0]["horsies_task_id"]) == (instance.map_index, task_id)


def test_run_ids_of_every_kind_are_found(connected: Site, hook: HorsiesHook, link: Callable[..., str]) -> None:
    for run_id in ("a/b", "with space", "läuft 日本", "100%2B", "x/tasks/y/1", "q?a#b&c;d"):
        instance = TaskInstanceKey(dag_id="sales", run_id=run_id, task_id="t")
        submit(hook, instance)
        answer = connected.ask(link(instance))
        assert (answer.status_code, answer.json()["run_id"]) == (200, run_id)


def test_nothing_submitted_is_not_found(connected: Site, hook: HorsiesHook, link: Callable[..., str]) -> None:
    assert connected.ask(link()).status_code == 404
    submit(hook, TaskInstanceKey(dag_id="sales", run_id=INSTANCE.run_id, task_id="another"))
    answer = connected.ask(link())
    assert (answer.status_code, answer.json()["title"]) == (404, "Not Found")


def test_the_namespace_of_the_connection_decides(
    site: Site, hook: HorsiesHook, database: str, fields: Callable[..., dict[str, Any]], link: Callable[..., str]
) -> None:
    submit(hook)
    site.connect(fields(database, extra=json.dumps({"namespace": "another"})))
    assert site.ask(link()).status_code == 404


def test_trouble_with_the_database_is_told_without_its_secrets(
    site: Site, hook: HorsiesHook, database: str, fields: Callable[..., dict[str, Any]], link: Callable[..., str]
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
        answer = site.ask(link())
        assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json"), wrong
        assert detail in answer.json()["detail"]
        for secret in (good["password"], "a-wrong-password", good["host"], "no_such_database", good["login"]):
            assert secret not in answer.text
    site.connect(good)
    assert site.ask(link()).status_code == 200


def test_airflow_lists_the_mounted_app(site: Site) -> None:
    listed = site.ask(f"{BASE_PATH}/api/v2/plugins", "admin").json()["plugins"]
    (plugin,) = [each for each in listed if each["name"] == "airflow_horsies"]
    assert [app["url_prefix"] for app in plugin["fastapi_apps"]] == ["/horsies"]
    errors = site.ask(f"{BASE_PATH}/api/v2/plugins/importErrors", "admin").json()
    assert errors["total_entries"] == 0
