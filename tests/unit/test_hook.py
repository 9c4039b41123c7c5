from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest
from airflow.providers.postgres.hooks import postgres as postgres_module
from airflow.sdk import Connection

from airflow_horsies import hook as hook_module
from airflow_horsies.client.extras import DEFAULT_CONNECT_ARGS
from airflow_horsies.db.connection import Database
from airflow_horsies.exceptions import InvalidTask
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskSpec
from airflow_horsies.provider_info import CONNECTION_TYPE
from airflow_horsies.wire.encoding import DEFAULT_MAX_PAYLOAD_BYTES

SECRET = "s3cret-word"


def make_hook(extra: dict[str, Any] | None = None, **fields: Any) -> HorsiesHook:
    given = {"host": "db.example", "port": 6432, "login": "airflow", "password": SECRET, "schema": "work", **fields}
    connection = Connection(conn_id="h", conn_type="horsies", extra=json.dumps(extra) if extra else None, **given)
    return HorsiesHook("h", connection=connection)


def database_of(extra: dict[str, Any] | None = None, **fields: Any) -> Database:
    return make_hook(extra, **fields).settings.database


def test_connection_becomes_arguments_of_the_driver_with_defaults() -> None:
    database = database_of()
    assert database.connect_args == {
        **DEFAULT_CONNECT_ARGS,
        "host": "db.example",
        "port": 6432,
        "user": "airflow",
        "password": SECRET,
        "dbname": "work",
    }
    assert database.listen_args == database.connect_args


def test_fields_left_empty_are_left_to_libpq() -> None:
    database = database_of(host=None, port=None, login="", password=None, schema=None)
    assert database.connect_args == DEFAULT_CONNECT_ARGS


def test_extras_are_picked_by_key() -> None:
    extra = {
        "sslmode": "require",
        "connect_timeout": 3,
        "options": "-c search_path=queue",
        "namespace": "blue",
        "listen": "notify",
        "max_payload_bytes": 10,
    }
    database = database_of(extra)
    assert database.connect_args["sslmode"] == "require"
    assert database.connect_args["connect_timeout"] == 3
    assert database.connect_args["options"] == "-c search_path=queue"
    assert not {"namespace", "listen", "max_payload_bytes"} & set(database.connect_args)


@pytest.mark.parametrize(
    ("extra", "where"),
    [
        ({"listen_host": "direct"}, ("direct", 6432)),
        ({"listen_port": 5432}, ("db.example", 5432)),
        ({"listen_host": "direct", "listen_port": 5432}, ("direct", 5432)),
        ({"listen_host": "", "listen_port": None}, ("db.example", 6432)),
    ],
    ids=str,
)
def test_way_past_a_pooler_is_for_listening_only(extra: dict[str, Any], where: tuple[str, int]) -> None:
    database = database_of(extra)
    assert (database.listen_args["host"], database.listen_args["port"]) == where
    assert (database.connect_args["host"], database.connect_args["port"]) == ("db.example", 6432)
    assert not {"listen_host", "listen_port"} & {*database.connect_args, *database.listen_args}


def test_unknown_extra_is_refused_by_name() -> None:
    with pytest.raises(
        InvalidTask, match=r"extra: connection h has unknown option\(s\) name_space, sslmod\. Supported: listen"
    ):
        database_of({"sslmod": "require", "name_space": "x", "sslmode": "require"})


@pytest.mark.parametrize(
    ("extra", "namespace"), [({}, "default"), ({"namespace": "blue"}, "blue"), ({"namespace": ""}, "default")]
)
def test_namespace_has_a_default(extra: dict[str, Any], namespace: str) -> None:
    assert make_hook(extra).client.namespace == namespace


@pytest.mark.parametrize(("extra", "listens"), [({}, True), ({"listen": "notify"}, True), ({"listen": "poll"}, False)])
def test_waiting_is_by_notifications_unless_polling_is_asked_for(extra: dict[str, Any], listens: bool) -> None:
    assert make_hook(extra).settings.listens is listens


def test_other_ways_of_waiting_are_refused() -> None:
    with pytest.raises(InvalidTask, match="must be 'notify' or 'poll' in the extra of connection h, not 'pull'"):
        make_hook({"listen": "pull"}).client.can_listen()


def test_polling_needs_no_listener() -> None:
    assert make_hook({"listen": "poll"}).client.can_listen() is False


@pytest.mark.parametrize("uses_psycopg", [True, False])
def test_driver_is_the_one_of_airflows_postgres_provider(monkeypatch: pytest.MonkeyPatch, uses_psycopg: bool) -> None:
    monkeypatch.setattr(postgres_module, "USE_PSYCOPG3", uses_psycopg)
    assert database_of().use_psycopg is uses_psycopg


def test_hook_does_nothing_until_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a hook was built, and it looked around")

    monkeypatch.setattr(HorsiesHook, "get_connection", refuse)
    monkeypatch.setattr(socket, "socket", refuse)
    with HorsiesHook("not_defined_anywhere") as hook:
        assert hook.horsies_conn_id == "not_defined_anywhere"
    assert HorsiesHook().horsies_conn_id == "horsies_default"


def test_invalid_task_is_refused_before_anything_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Database, "connect", lambda *_: pytest.fail("it connected"))
    bad = TaskSpec(task_name="add", kwargs={"x": float("nan")})
    with pytest.raises(InvalidTask) as one:
        make_hook().enqueue_task(bad)
    assert one.value.field == "kwargs.x"
    with pytest.raises(InvalidTask) as many:
        make_hook().enqueue_tasks([TaskSpec(task_name="add"), bad])
    assert many.value.field == "task 1: kwargs.x"


def test_payload_limit_comes_from_the_connection() -> None:
    with pytest.raises(InvalidTask, match="more than the 10 allowed"):
        make_hook({"max_payload_bytes": 10}).enqueue_task(TaskSpec(task_name="add", kwargs={"x": "a long text"}))


def test_one_id_is_not_taken_for_several() -> None:
    with pytest.raises(InvalidTask, match="must be a list of ids, not a string"):
        make_hook().read_tasks("0198a0de-0000-7000-8000-000000000001")


def test_form_is_that_of_the_provider_info() -> None:
    behaviour = HorsiesHook.get_ui_field_behaviour()
    assert behaviour == CONNECTION_TYPE["ui-field-behaviour"]
    assert behaviour["relabeling"] == {"schema": "Database"}
    json.loads(behaviour["placeholders"]["extra"])


def test_address_for_messages_holds_no_password() -> None:
    assert database_of().address == "database work of airflow at db.example:6432"
    assert SECRET not in database_of().address


def test_fields_the_form_left_empty_count_as_not_given() -> None:
    hook = make_hook(
        {"namespace": None, "listen": None, "listen_host": "", "listen_port": None, "max_payload_bytes": None}
    )
    assert (hook.client.namespace, hook.settings.listens) == ("default", True)
    assert hook.settings.max_payload_bytes == DEFAULT_MAX_PAYLOAD_BYTES
    assert hook.settings.database.listen_args == hook.settings.database.connect_args


def test_payload_limit_that_is_no_number_is_refused_by_name() -> None:
    with pytest.raises(
        InvalidTask, match="max_payload_bytes: must be an integer in the extra of connection h, not 'much'"
    ):
        make_hook({"max_payload_bytes": "much"}).enqueue_task(TaskSpec(task_name="add"))


def test_triggers_that_start_together_look_the_connection_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups: list[str] = []

    async def look_up(conn_id: str) -> Connection:
        lookups.append(conn_id)
        await asyncio.sleep(0.05)
        return Connection(conn_id=conn_id, conn_type="horsies", host=f"{conn_id}-{len(lookups)}")

    monkeypatch.setattr(hook_module, "get_async_connection", look_up)

    async def host_of(conn_id: str) -> Any:
        return (await HorsiesHook(conn_id).async_client()).settings.database.connect_args["host"]

    async def main() -> None:
        impatient = asyncio.create_task(host_of("a"))
        others = [asyncio.create_task(host_of(conn_id)) for conn_id in ("a", "b", "a")]
        await asyncio.sleep(0.01)
        # The first of them is killed meanwhile.
        impatient.cancel()
        assert await asyncio.gather(*others) == ["a-2", "b-2", "a-2"]
        assert lookups == ["a", "b"]
        # The connection may have changed since.
        assert await host_of("a") == "a-3"

    asyncio.run(main())


def test_connection_that_cannot_be_looked_up_is_an_error_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async def look_up(conn_id: str) -> Connection:
        await asyncio.sleep(0)
        raise LookupError(conn_id)

    monkeypatch.setattr(hook_module, "get_async_connection", look_up)

    async def main() -> list[Any]:
        return await asyncio.gather(*(HorsiesHook("a").async_client() for _ in range(2)), return_exceptions=True)

    assert [type(each) for each in asyncio.run(main())] == [LookupError, LookupError]
