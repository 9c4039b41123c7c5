"""Airflow's real api-server, below a base path, with real users and tokens."""

from __future__ import annotations

import http.client
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import psycopg
import pytest
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from jsonschema import Draft202012Validator
from psycopg.types.json import Json
from sqlalchemy import NullPool, create_engine
from sqlalchemy.orm import Session

from airflow_horsies.embedded.airflow import EmbeddedAirflow
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.embedded.process import GuardedProcess
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import AirflowTry, Report, TaskInstanceKey, TaskSpec
from tests.docs.payload_types import answer_schema

HERE = Path(__file__).parent
BASE_PATH = "/team/airflow"
PAGES = f"{BASE_PATH}/horsies"
# As auth_by_dag.py has them, which only the api-server imports.
STRANGER = "stranger"
FOREIGN_WRITER = "foreign_writer"
DAG_OF_STRANGERS = "dag_of_strangers"
# Name to role: a viewer reads every DAG, a user also writes them, an op also reads connections.
USERS = {
    "admin": "admin",
    "op": "op",
    "writer": "user",
    "viewer": "viewer",
    STRANGER: "viewer",
    FOREIGN_WRITER: "user",
}
START_SECONDS = 120
# In every argument, result, error, line and name of the tasks of a DAG that strangers may not see, and of theirs.
HIDDEN_MARK = "zebra"
OWN_MARK = "giraffe"
HIDDEN = TaskInstanceKey(dag_id="hidden_dag", run_id="run_of_hidden", task_id="task_of_hidden")
OWN = TaskInstanceKey(dag_id=DAG_OF_STRANGERS, run_id="run_of_own", task_id="task_of_own")
INSTANCE = TaskInstanceKey(dag_id="sales", run_id="scheduled__2026-01-02T03:04:05+00:00", task_id="group.load")

# Known to Airflow as that of INSTANCE is.
ANOTHER_DAG = "another_dag"
MONDAY = datetime(2026, 1, 5, tzinfo=UTC)
REPORT = Report(name="reliability", period_start=MONDAY, period_end=MONDAY + timedelta(days=7), location="/reports")

Fields = Callable[..., dict[str, Any]]
# Every answer is one of the payloads.
ANSWERS = Draft202012Validator(answer_schema())


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A database with tasks that have ended, of the DAG of strangers and of another."""

    database: str
    hidden_ids: tuple[str, ...]
    own_ids: tuple[str, ...]


class Site:
    """The api-server and its users; a user of None is nobody."""

    def __init__(self, airflow: EmbeddedAirflow, log: Path) -> None:
        self.base_url = airflow.base_url
        self.origin = airflow.base_url.removesuffix(BASE_PATH)
        self._log = log
        self._client = httpx.Client(base_url=self.origin, timeout=30, trust_env=False)
        self._tokens = {user: self._log_in(user, airflow.password(user)) for user in USERS}

    def _log_in(self, user: str, password: str) -> str:
        given = {"username": user, "password": password}
        answer = self._client.post(f"{BASE_PATH}/auth/token", json=given).raise_for_status()
        return str(answer.json()["access_token"])

    def bearer(self, user: str | None) -> dict[str, str]:
        return {} if user is None else {"Authorization": f"Bearer {self._tokens[user]}"}

    def cookie(self, user: str) -> dict[str, str]:
        return {"Cookie": f"_token={self._tokens[user]}"}

    def ask(
        self,
        path: str,
        user: str | None = "viewer",
        method: str = "GET",
        *,
        headers: Mapping[str, str] | None = None,
        with_cookie: bool = False,
        **given: Any,
    ) -> httpx.Response:
        # What an earlier answer set would make somebody of nobody.
        self._client.cookies.clear()
        who = self.cookie(user) if with_cookie and user is not None else self.bearer(user)
        answer = self._client.request(method, path, headers={**who, **(headers or {})}, **given)
        if path.startswith(f"{PAGES}/api/") and answer.content and "json" in answer.headers.get("content-type", ""):
            ANSWERS.validate(answer.json())
        return answer

    def ask_as_is(self, target: str, user: str | None, method: str = "GET", **headers: str) -> tuple[int, str]:
        """With a path that no client makes tidy."""
        connection = http.client.HTTPConnection(urlsplit(self.origin).netloc, timeout=30)
        try:
            connection.request(method, target, headers={**self.bearer(user), **headers})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def connect(self, fields: Mapping[str, Any] | None) -> None:
        """Point the connection of the api-server somewhere else; None removes it."""
        path = f"{BASE_PATH}/api/v2/connections"
        self.ask(f"{path}/horsies_ui", "admin", "DELETE")
        if fields is not None:
            body = {"connection_id": "horsies_ui", "conn_type": "horsies", **fields}
            self.ask(path, "admin", "POST", json=body).raise_for_status()

    def written_log(self) -> str:
        """What the api-server has logged."""
        return self._log.read_text(errors="replace")

    def close(self) -> None:
        self._client.close()


@pytest.fixture(scope="session")
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
            "AIRFLOW__HORSIES__CALLBACKS": "True",
            # Tests ask often, and all from one address.
            "AIRFLOW__HORSIES__CALLBACK_RATE": "60000",
            "PYTHONPATH": str(HERE),
        },
    )
    airflow.migrate()
    add_dags(postgres.dsn("airflow_of_ui", scheme="postgresql+psycopg2"), INSTANCE.dag_id, ANOTHER_DAG)
    log = airflow.folder / "logs" / "api-server.log"
    server = GuardedProcess(
        "Airflow's api-server",
        [sys.executable, "-m", "airflow", "api-server"],
        log=log,
        environ=airflow.environ(),
        folder=airflow.folder,
    )
    with server:
        give_up = time.monotonic() + START_SECONDS
        while not airflow.health():
            assert server.running and time.monotonic() < give_up, server.log_tail(40)
            time.sleep(0.2)
        site = Site(airflow, log)
        yield site
        site.close()


def add_dags(database_url: str, *dag_ids: str) -> None:
    """Airflow shows the audit log of DAGs that it knows."""
    engine = create_engine(database_url, poolclass=NullPool)
    with Session(engine) as session:
        session.add(DagBundleModel(name="bundle"))
        session.flush()
        session.add_all(DagModel(dag_id=dag_id, bundle_name="bundle", is_stale=False) for dag_id in dag_ids)
        session.commit()


@pytest.fixture(scope="session")
def fields(postgres: EmbeddedPostgres) -> Fields:
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


def add_try(
    postgres: EmbeddedPostgres,
    instance: TaskInstanceKey,
    *,
    try_number: int,
    started_at: datetime,
    rendered: Mapping[str, Any] | None = None,
) -> None:
    """What Airflow keeps of a task instance that runs: its newest try, and what that rendered and masked."""
    key = {**asdict(instance), "try_number": try_number, "started_at": started_at}
    with psycopg.connect(**postgres.conninfo("airflow_of_ui")) as connection:
        # Neither the DAG run nor the version of the DAG is looked at.
        connection.execute("SET session_replication_role = replica")
        connection.execute(
            "INSERT INTO task_instance"
            " (id, dag_id, run_id, task_id, map_index, try_number, max_tries, pool, pool_slots, state, start_date)"
            " VALUES (gen_random_uuid(), %(dag_id)s, %(run_id)s, %(task_id)s, %(map_index)s, %(try_number)s, 3,"
            " 'default_pool', 1, 'running', %(started_at)s)",
            key,
        )
        if rendered is not None:
            connection.execute(
                "INSERT INTO rendered_task_instance_fields (dag_id, run_id, task_id, map_index, rendered_fields)"
                " VALUES (%(dag_id)s, %(run_id)s, %(task_id)s, %(map_index)s, %(rendered)s)",
                {**key, "rendered": Json(rendered)},
            )


@contextmanager
def submitting_as(base_url: str) -> Iterator[None]:
    """What is submitted meanwhile is of the Airflow deployment at this address."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__API__BASE_URL", base_url)
        yield


@pytest.fixture
def of_site(site: Site) -> Iterator[None]:
    """The test submits as the deployment whose pages it looks at."""
    with submitting_as(site.base_url):
        yield


@pytest.fixture
def connected(site: Site, fields: Fields, database: str) -> Site:
    site.connect(fields(database))
    return site


def api_path(instance: TaskInstanceKey = INSTANCE, tail: str = "") -> str:
    """Where the routes tell of a task instance."""
    dag_id, run_id, task_id = (quote(each, safe="") for each in (instance.dag_id, instance.run_id, instance.task_id))
    return f"{PAGES}/api/dags/{dag_id}/runs/{run_id}/tasks/{task_id}/{instance.map_index}{tail}"


def plant(hook: HorsiesHook, instance: TaskInstanceKey, mark: str) -> tuple[str, ...]:
    """Tasks that a worker completes and fails, with what the worker tells of them; all of it holds the mark."""
    # Not before conftest.py is there, which imports this module and is imported by that one.
    from tests.integration.test_attempts import begin_attempt, end_attempt, write_lines, write_progress

    specs = [
        TaskSpec(task_name="echo", kwargs={"value": f"{mark} argument"}, retain_rerun_input=True),
        TaskSpec(task_name="blow_up", kwargs={"text": f"{mark} error"}),
        TaskSpec(task_name="fail", kwargs={"code": f"{mark}_code".upper()}),
        TaskSpec(task_name=f"{mark}_name", kwargs={"value": f"{mark} argument"}),
    ]
    ids = tuple(sent.task_id for sent in hook.submit_tasks(specs, instance, AirflowTry(try_number=1)))
    hook.wait(list(ids), timeout_seconds=60)
    for task_id in ids:
        begin_attempt(hook, task_id, hostname=f"{mark}-host")
        write_lines(hook, task_id, f"{mark} line")
        write_progress(hook, task_id, 1, stage=f"{mark} stage")
        end_attempt(hook, task_id, outcome="FAILED", error_message=f"{mark} error", metrics={"note": f"{mark} note"})
    return ids


def submit(hook: HorsiesHook, instance: TaskInstanceKey = INSTANCE, *, count: int = 1, life: int = 1) -> list[str]:
    specs = [TaskSpec(task_name="add", kwargs={"a": n, "b": "the-argument"}) for n in range(count)]
    return [
        sent.task_id for sent in hook.submit_tasks(specs, instance, AirflowTry(clear_number=life - 1, try_number=life))
    ]
