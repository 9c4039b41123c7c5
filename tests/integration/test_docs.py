"""The pages, done: the roles, grants, worker, connection and DAGs they describe, with real Postgres and Spark."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas
import psycopg
import pytest
from airflow.sdk import Connection

from airflow_horsies.client.health import Status, check_health
from airflow_horsies.client.ledger import migrate_ledger
from airflow_horsies.embedded.airflow import EmbeddedAirflow
from airflow_horsies.embedded.java import find_java
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.embedded.process import LOOPBACK, GuardedProcess
from airflow_horsies.exceptions import ListenUnavailable
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import AirflowTry, TaskInstanceKey, TaskSpec, TaskState
from tests.docs import airflow_server, run_dags
from tests.docs.blocks import TASK_GUIDES, WORKER_COMMAND, Block, all_blocks, commands, is_checked_only
from tests.docs.outputs import pattern_of
from tests.integration.conftest import MakeHook
from tests.integration.pgbouncer import pgbouncer
from tests.integration.releases import IN_PLACE

pytestmark = pytest.mark.timeout(1200)

# Far more than anything here takes: the machine may have other work.
SECONDS = 300
# As the pages have it.
WORKER_ROLE = {"login": "horsies", "password": "change-me"}
AIRFLOW_ROLE = {"login": "airflow", "password": "change-me-too"}
DATABASE = "horsies"
# What tells the blocks of grants apart.
GRANTS_ON_TASKS = "horsies_key_reservations"
GRANTS_ON_OLDER_TASKS = "horsies 0.4 and older"
GRANTS_ON_WORKFLOWS = "only for workflows"
GRANTS_ON_LEDGER = "SCHEMA airflow_horsies"
# The logical date of the DAG runs.
TODAY = datetime.now(UTC)
# What is too slow for a test is made quicker.
QUICKER = {"[60, 300]": "[1, 1]", '"NO_DATA_YET": timedelta(minutes=10)': '"NO_DATA_YET": timedelta(seconds=1)'}

# Each page that begins a module makes an app; here they are one.
MAKES_APP = "app = horsies_app()\n"
# What the pages show in place of an id, and of a worker's machine and process.
SHOWN_ID = "01990000-0000-7000-8000-000000000000"
SHOWN_HOST = "node-3"
NEXT_COMMAND = "==> the next command"

DAGS = all_blocks("python dag")
BASH = [block for block in all_blocks("bash") if not all(map(is_checked_only, commands(block)))]
OUTPUTS = all_blocks("text output")


@dataclass
class Ended:
    """A block of commands that was run, and the task that they were about."""

    code: int
    out: str
    err: str
    task_id: str = ""


@dataclass
class Deployment:
    """What the guides describe, as far as it runs on one machine."""

    folder: Path
    postgres: EmbeddedPostgres
    environ: dict[str, str]
    hook: HorsiesHook
    ran: dict[Block, Ended] = field(default_factory=dict)

    def localised(self, text: str) -> str:
        """The hosts, ports and folders of the guides become those of this machine."""
        for name, value in {
            "postgres.example.com:5432": f"{LOOPBACK}:{self.postgres.port}",
            "host=postgres.example.com port=5432": f"host={LOOPBACK} port={self.postgres.port}",
            "host postgres.example.com --conn-port 5432": f"host {LOOPBACK} --conn-port {self.postgres.port}",
            '"host": "postgres.example.com", "port": 5432': f'"host": "{LOOPBACK}", "port": {self.postgres.port}',
            '"listen_host": "postgres.example.com", "listen_port": 5432': (
                f'"listen_host": "{LOOPBACK}", "listen_port": {self.postgres.port}'
            ),
            "/data/": f"{self.folder}/data/",
            **QUICKER,
        }.items():
            text = text.replace(name, value)
        return text

    def run(self, block: Block, **replaced: str) -> Ended:
        """Run the commands of a block in one shell; those that are only looked at elsewhere are left out."""
        between = f"\necho '{NEXT_COMMAND}'\n"
        script = self.localised(between.join(each for each in commands(block) if not is_checked_only(each)))
        for name, value in replaced.items():
            script = script.replace(name, value)
        ended = self.execute(block, ["bash", "-euo", "pipefail", "-c", script])
        ended.task_id = replaced.get("TASK_ID", "")
        return ended

    def execute(self, block: Block, command: list[str | Path]) -> Ended:
        done = subprocess.run(
            command, env=self.environ, cwd=self.folder, capture_output=True, text=True, timeout=SECONDS
        )
        self.ran[block] = Ended(done.returncode, done.stdout, done.stderr)
        return self.ran[block]

    def administer(self, block: Block, database: str, **login: str) -> None:
        info = {**self.postgres.conninfo(database), **({"user": login["login"], **login} if login else {})}
        info.pop("login", None)
        with psycopg.connect(**info, autocommit=True) as connection:
            for statement in re.sub(r"--.*", "", block.text).split(";"):
                if statement.strip():
                    connection.execute(statement.encode())

    def finished_task(self) -> str:
        spec = TaskSpec(task_name="sales.backfill", kwargs={"days": 1, "seconds_each": 0}, idempotency_key="finished")
        task_id = self.hook.enqueue_task(spec)
        self.hook.wait([task_id], timeout_seconds=SECONDS)
        return task_id

    def running_task(self) -> str:
        task_id = self.hook.enqueue_task(TaskSpec(task_name="sales.backfill", kwargs={"days": 600}))
        _until(lambda: self.hook.read_attempts([task_id]).get(task_id, ()), "the start of a task")
        return task_id


def _until(holds: Any, what: str, seconds: float = SECONDS) -> None:
    give_up = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < give_up, f"{what} did not come"
        time.sleep(0.1)


def block_of(guide: str, info: str, containing: str = "") -> Block:
    (found,) = [block for block in all_blocks(info) if block.guide == guide and containing in block.text]
    return found


def environment_of(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if line)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("docs")
    with ExitStack() as running:
        postgres = running.enter_context(EmbeddedPostgres(folder / "postgres", durable=False))
        postgres.create_database("airflow_metadata")
        airflow = EmbeddedAirflow(
            folder / "airflow",
            database_url=postgres.dsn("airflow_metadata", scheme="postgresql+psycopg2"),
            dags_folder=folder / "dags",
        )
        airflow_server.make_clients(folder / "bin", folder / "airflow.sock")
        connection = Connection(
            conn_id="horsies_docs",
            conn_type="horsies",
            host=LOOPBACK,
            port=postgres.port,
            schema=DATABASE,
            **AIRFLOW_ROLE,
        )
        made = Deployment(
            folder=folder,
            postgres=postgres,
            environ={**airflow.environ(), "PATH": f"{folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"},
            hook=running.enter_context(HorsiesHook("horsies_docs", connection=connection)),
        )
        made.administer(block_of("how-to/permissions.md", "sql", "CREATE ROLE"), "postgres")
        worker = running.enter_context(_worker(made))
        running.enter_context(_airflow_server(made, folder))
        _until((folder / "airflow.sock").exists, "Airflow")
        subprocess.run([folder / "bin" / "airflow", "db", "migrate"], env=made.environ, check=True, capture_output=True)
        _until_live(made, worker)

        migrated = made.run(block_of("how-to/permissions.md", "bash", "horsies_owner"))
        assert migrated.code == 0, migrated
        for grants in (GRANTS_ON_TASKS, GRANTS_ON_WORKFLOWS, GRANTS_ON_LEDGER):
            made.administer(block_of("how-to/permissions.md", "sql", grants), DATABASE, **WORKER_ROLE)
        connected = made.run(block_of("how-to/use-in-a-dag.md", "bash", "connections add"))
        assert connected.code == 0, (connected, worker.log_tail())
        # Outside of Airflow's own processes, and in dag.test(), a connection is found in the environment.
        exported = block_of("how-to/deploy.md", "bash", "export AIRFLOW_CONN_").text.splitlines()[0]
        name, _, value = shlex.split(exported)[1].partition("=")
        made.environ[name] = made.localised(value)
        yield made


def _worker(made: Deployment) -> GuardedProcess:
    """The worker as the guide to systemd starts it, with the tasks of all pages."""
    tasks = [block.text for guide in TASK_GUIDES for block in all_blocks("python tasks") if block.guide == guide]
    assert len(tasks) == len(all_blocks("python tasks")), "tasks on a page that TASK_GUIDES does not name"
    first, *others = "\n\n".join(tasks).split(MAKES_APP)
    (made.folder / "my_tasks.py").write_text(made.localised(first + MAKES_APP + "".join(others)))
    (made.folder / "data" / "arrivals").mkdir(parents=True)
    days = ["2026-01-01"] * 3 + [f"{TODAY:%Y-%m-%d}"] * 3
    sold = pandas.DataFrame({"shop": ["north", "north", "south"] * 2, "day": days, "amount": [1.5, 2.0, 9.0] * 2})
    sold.to_parquet(made.folder / "data" / "sales")
    (made.folder / "tmp").mkdir()
    (command,) = re.findall(r"^ExecStart=(.*)$", block_of("how-to/deploy.md", "ini systemd").text, re.MULTILINE)
    assert Path(command.split()[0]).name + command[command.index(" ") :] == WORKER_COMMAND
    for block in all_blocks("ini environment"):
        if block.guide == "how-to/deploy.md":
            made.environ |= environment_of(made.localised(block.text))
    made.environ |= {
        "JAVA_HOME": str(find_java(made.folder / "java").home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": LOOPBACK,
        "TMPDIR": str(made.folder / "tmp"),
    }
    return GuardedProcess(
        "The horsies worker",
        [sys.executable, *shlex.split(command)[1:]],
        log=made.folder / "worker.log",
        environ=made.environ,
        folder=made.folder,
        grace_seconds=8,
    )


def _airflow_server(made: Deployment, folder: Path) -> GuardedProcess:
    return GuardedProcess(
        "Airflow",
        [sys.executable, airflow_server.__file__, folder / "airflow.sock"],
        log=folder / "airflow.log",
        environ=made.environ,
        folder=folder,
    )


def _until_live(made: Deployment, worker: GuardedProcess) -> None:
    def lives() -> bool:
        assert worker.running, worker.log_tail(40)
        with suppress(psycopg.errors.UndefinedTable), psycopg.connect(**made.postgres.conninfo(DATABASE)) as connection:
            return connection.execute("SELECT 1 FROM horsies_worker_states").fetchone() is not None
        return False

    _until(lives, "the worker")


# -- commands --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", BASH, ids=lambda block: block.named)
def test_commands_run(deployment: Deployment, block: Block) -> None:
    if block not in deployment.ran:
        is_cancel = any(" cancel " in command for command in commands(block))
        with_task = "TASK_ID" in block.text
        task_id = (deployment.running_task() if is_cancel else deployment.finished_task()) if with_task else ""
        deployment.run(block, TASK_ID=task_id)
        if is_cancel:
            _until(
                lambda: deployment.hook.read_attempts([task_id]).get(task_id, ())[-1].outcome,
                "the end of a cancelled task",
            )
            assert deployment.hook.read_attempts([task_id]).get(task_id, ())[-1].outcome == "CANCELLED"
    assert deployment.ran[block].code == 0, deployment.ran[block]


@pytest.mark.parametrize("block", OUTPUTS, ids=lambda block: block.named)
def test_shown_output_is_what_the_command_above_it_prints(deployment: Deployment, block: Block) -> None:
    """All of it: ids, machines and processes are those of this run, and only durations may differ, in their digits."""
    above = [each for each in BASH if each.guide == block.guide and each.line < block.line][-1]
    if above not in deployment.ran:
        test_commands_run(deployment, above)
    ended = deployment.ran[above]
    (worker,) = [worker for worker in deployment.hook.read_workers() if worker.alive]
    values = {SHOWN_ID: ended.task_id, f"{SHOWN_HOST}:4711": f"{worker.hostname}:{worker.pid}"}
    printed = ended.out.split(f"{NEXT_COMMAND}\n")[-1].splitlines()
    assert len(printed) == len(block.text.splitlines()), ended.out
    for shown, line in zip(block.text.splitlines(), printed, strict=True):
        assert pattern_of(shown, values).fullmatch(line), f"{line!r} is not {shown!r}"


# -- Python ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", all_blocks("python script"), ids=lambda block: block.named)
def test_script_runs(deployment: Deployment, block: Block) -> None:
    script = deployment.folder / "script.py"
    script.write_text(deployment.localised(block.text))
    ended = deployment.execute(block, ["python", script])
    assert ended.code == 0, ended


def test_test_of_a_task_passes(deployment: Deployment) -> None:
    (block,) = all_blocks("python test")
    (deployment.folder / "test_sales.py").write_text(block.text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_sales.py"]
    ended = deployment.execute(block, command)
    assert ended.code == 0 and "1 passed" in ended.out, ended


@dataclass(frozen=True)
class DagRuns:
    told: dict[str, Any]
    log: str


@pytest.fixture(scope="module")
def dag_runs(deployment: Deployment) -> DagRuns:
    """Every DAG of the guides, in one process: Airflow is imported once."""
    folder = deployment.folder
    for block in DAGS:
        (folder / "dags" / f"{_dag_id(block)}.py").write_text(deployment.localised(block.text))
    over = threading.Event()
    arrivals = threading.Thread(target=_let_data_arrive, args=(deployment, over))
    arrivals.start()
    try:
        done = subprocess.run(
            ["python", run_dags.__file__, folder / "dags", folder / "report", TODAY.isoformat()],
            env=deployment.environ,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=2 * SECONDS,
        )
    finally:
        over.set()
        arrivals.join()
    told = [json.loads(line) for line in (folder / "report").read_text().splitlines()]
    return DagRuns({each["dag_id"]: each for each in told}, done.stdout)


def _let_data_arrive(deployment: Deployment, over: threading.Event) -> None:
    """What sales.fetch looks for comes once it was missed: after an attempt, and after a task of its own."""
    arrivals = deployment.folder / "data" / "arrivals"
    connection = deployment.hook.connection
    with HorsiesHook("horsies_arrivals", connection=connection) as hook:
        while not over.wait(0.2):
            for task in hook.list_tasks(task_name="sales.fetch").tasks:
                if task.retry_count:
                    (arrivals / "sales_retries.csv").write_text("it came")
                elif task.state is TaskState.FAILED:
                    (arrivals / "sales_airflow_retries.csv").write_text("it came")


def _dag_id(block: Block) -> str:
    return re.findall(r"^(\w+)\(\)$", block.text, re.MULTILINE)[-1]


@pytest.mark.parametrize("block", DAGS, ids=_dag_id)
def test_dag_ends_well(dag_runs: DagRuns, block: Block) -> None:
    told = dag_runs.told.get(_dag_id(block), {"error": "nothing was told of it"})
    assert told.get("state") == "success", f"{told.get('error', told)}\n{dag_runs.log}"
    assert set(told["tasks"].values()) == {"success"}, told


def test_data_that_was_not_there_is_tried_for_again(deployment: Deployment, dag_runs: DagRuns) -> None:
    rounds = deployment.hook.list_tasks(task_name="sales.fetch").tasks
    # One task with a second attempt by horsies, and two tasks of Airflow's own two tries.
    assert sorted((str(task.state), task.retry_count) for task in rounds) == [
        ("COMPLETED", 0),
        ("COMPLETED", 1),
        ("FAILED", 0),
    ], dag_runs.log


def test_shown_log_is_that_of_the_dag(deployment: Deployment, dag_runs: DagRuns) -> None:
    """Its lines are there, in this order, with the id of the task and the machine of the worker."""
    (block,) = all_blocks("text log")
    (dag,) = [each for each in DAGS if each.guide == block.guide and "sales.daily" in each.text]
    log = dag_runs.log.split(f"==> {_dag_id(dag)}\n")[1].split("\n==> ")[0].splitlines()
    task_id = dag_runs.told[_dag_id(dag)]["horsies"]["daily"]
    (worker,) = [worker for worker in deployment.hook.read_workers() if worker.alive]
    values = {SHOWN_ID: task_id, SHOWN_HOST: worker.hostname}
    left = iter(log)
    for line in block.text.splitlines():
        wanted = pattern_of(line.removesuffix("…").rstrip(), values)
        assert any(wanted.search(each) for each in left), f"{line!r} is not in\n{dag_runs.log}"


@pytest.mark.parametrize("block", all_blocks("json result"), ids=lambda block: block.named)
def test_shown_results_are_those_of_the_dag(dag_runs: DagRuns, block: Block) -> None:
    dag = [each for each in DAGS if each.guide == block.guide and each.line < block.line][-1]
    assert json.loads(block.text) == dag_runs.told[_dag_id(dag)]["values"]


# -- Postgres --------------------------------------------------------------------------------------------------------


def test_role_of_airflow_can_do_no_more_than_it_must(deployment: Deployment) -> None:
    info = {**deployment.postgres.conninfo(DATABASE), "user": "airflow", "password": AIRFLOW_ROLE["password"]}
    with psycopg.connect(**info, autocommit=True) as connection:
        for refused in (
            "DELETE FROM horsies_task_history",
            "UPDATE horsies_worker_states SET pid = 0",
            "CREATE TABLE public.mine (id int)",
            "DELETE FROM airflow_horsies.migrations; DROP TABLE airflow_horsies.logs",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(refused.encode())


def test_grants_for_older_releases_are_enough(
    postgres: EmbeddedPostgres, make_template: Callable[[str], str], make_hook: MakeHook
) -> None:
    """On a database of such a release, with a role of its own name, as roles belong to the server."""
    database, role = "docs_older_release", "airflow_older_release"
    postgres.create_database(database, template=make_template(IN_PLACE))
    try:
        migrate_ledger(make_hook(database).client)
        with psycopg.connect(**postgres.conninfo(database), autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'change-me-too'".encode())
            try:
                for grants in (GRANTS_ON_OLDER_TASKS, GRANTS_ON_LEDGER):
                    text = block_of("how-to/permissions.md", "sql", grants).text
                    connection.execute(text.replace("TO airflow;", f"TO {role};").encode())
                hook = make_hook(database, login=role, password="change-me-too")
                findings = {each.check: each for each in check_health(hook.client)}
                assert findings["privileges"].status == findings["ledger"].status == Status.OK, findings
                instance = TaskInstanceKey(dag_id="sales", run_id="manual__1", task_id="daily")
                spec = TaskSpec(task_name="add", delay=timedelta(hours=1))
                sent = hook.submit_task(spec, instance, AirflowTry(try_number=1))
                assert hook.cancel_task(sent.task_id) == "CANCELLED"
                hook.close()
            finally:
                connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())
    finally:
        postgres.drop_database(database)


def test_partition_of_tomorrow_can_be_read(deployment: Deployment) -> None:
    info = {**deployment.postgres.conninfo(DATABASE), "user": "horsies", "password": WORKER_ROLE["password"]}
    with psycopg.connect(**info) as connection:
        connection.execute("CREATE TABLE tomorrow (id int)")
        found = connection.execute("SELECT has_table_privilege('airflow', 'tomorrow', 'SELECT')").fetchone()
        connection.rollback()
    assert found == (True,)


def test_pooler_of_the_guide_needs_a_direct_way(deployment: Deployment, tmp_path: Path) -> None:
    (settings,) = all_blocks("ini pgbouncer")
    direct, polling = [block.text for block in all_blocks("json extra") if block.guide == "how-to/pgbouncer.md"]
    roles = {role["login"]: role["password"] for role in (WORKER_ROLE, AIRFLOW_ROLE)}
    text = deployment.localised(settings.text)
    with pgbouncer(deployment.postgres, tmp_path, settings=text, users=roles, database=DATABASE) as port:
        for extra in (direct, polling, None):
            connection = Connection(
                conn_id="pooled",
                conn_type="horsies",
                host=LOOPBACK,
                port=port,
                schema=DATABASE,
                extra=deployment.localised(extra) if extra else None,
                **AIRFLOW_ROLE,
            )
            with HorsiesHook("pooled", connection=connection) as hook:
                task_id = hook.enqueue_task(TaskSpec(task_name="sales.convert", kwargs={"shop": "north"}))
                if extra is None:
                    with pytest.raises(ListenUnavailable, match="connection pooler in transaction mode"):
                        hook.wait([task_id], timeout_seconds=SECONDS)
                    continue
                poll_seconds = 0.2 if "poll" in extra else SECONDS
                (task,) = hook.wait([task_id], timeout_seconds=SECONDS, poll_seconds=poll_seconds)
                assert task.state is TaskState.COMPLETED


@pytest.mark.parametrize("block", all_blocks("json extra"), ids=lambda block: block.named)
def test_extra_is_accepted(deployment: Deployment, block: Block) -> None:
    connection = Connection(
        conn_id="with_extra",
        conn_type="horsies",
        host=LOOPBACK,
        port=deployment.postgres.port,
        schema=DATABASE,
        extra=deployment.localised(block.text),
        **AIRFLOW_ROLE,
    )
    with HorsiesHook("with_extra", connection=connection) as hook:
        ok, told = hook.test_connection()
        assert ok, told
        assert hook.client.can_listen() is ("poll" not in block.text)
