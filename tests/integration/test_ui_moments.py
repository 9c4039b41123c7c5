"""Signals, waits, callbacks and pauses on the page of a task instance, in Airflow's real api-server."""

from __future__ import annotations

import hashlib
import json
import uuid
from typing import Any

import pytest

from airflow_horsies.core.masking import TOKEN_PREFIX
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import AirflowTry, Graph, TaskSpec, node
from tests.integration.chunk_rig import sql
from tests.integration.releases import MOVED
from tests.integration.ui_site import INSTANCE, Site, api_path, submit

pytestmark = [pytest.mark.parametrize("release", [MOVED], indirect=True), pytest.mark.usefixtures("of_site")]

TOKEN = TOKEN_PREFIX + "Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4Zm9vYmFyYmE"
DIGEST = hashlib.sha256(TOKEN.encode()).digest()


def moments(site: Site) -> dict[str, Any]:
    answer = site.ask(api_path())
    assert answer.status_code == 200, answer.text
    for hidden in (TOKEN, TOKEN.removeprefix(TOKEN_PREFIX), DIGEST.hex(), "digest"):
        assert hidden not in answer.text
    shown: dict[str, Any] = answer.json()["moments"]
    return shown


def park(hook: HorsiesHook, task_id: str, name: str, *targets: str, due: str | None = None) -> None:
    sql(
        hook,
        "INSERT INTO airflow_horsies.parkings (horsies_task_id, name, occurrence, targets, attempt, times, due_at)"
        " VALUES (%s, %s, 1, %s::uuid[], 1, 1, now() + %s::interval)",
        *(task_id, name, [task_id, *targets], due),
    )


def consume(hook: HorsiesHook, task_id: str, name: str) -> None:
    sql(
        hook,
        "UPDATE airflow_horsies.messages SET consumed_by = %s, consumed_attempt = 2, consumed_at = now(),"
        " occurrence = 1 WHERE name = %s",
        *(task_id, name),
    )


def open_callback(hook: HorsiesHook, number: int, task_id: str, *, life: int = 1, **changed: Any) -> str:
    callback_id = str(uuid.uuid4())
    (base_url,) = sql(
        hook, "SELECT base_url FROM airflow_horsies.submissions WHERE horsies_task_id = %s LIMIT 1", task_id
    )[0]
    values = {
        "id": callback_id,
        "namespace": hook.client.namespace,
        "dag_id": INSTANCE.dag_id,
        "run_id": INSTANCE.run_id,
        "task_id": INSTANCE.task_id,
        "map_index": INSTANCE.map_index,
        "life": life,
        "number": number,
        "base_url": base_url,
        "horsies_task_id": task_id,
        "expires_at": "2099-01-01T00:00:00Z",
        "extended_by_seconds": 60,
        "last_expires_at": "2099-01-01T00:00:00Z",
        **changed,
    }
    columns, places = ", ".join(values), ", ".join(["%s"] * len(values))
    sql(hook, f"INSERT INTO airflow_horsies.callbacks ({columns}) VALUES ({places})", *values.values())
    sql(
        hook,
        "INSERT INTO airflow_horsies.callback_tokens (digest, callback_id) VALUES (%s, %s) ON CONFLICT DO NOTHING",
        *(DIGEST, callback_id),
    )
    return callback_id


def test_task_instance_without_any_has_none(connected: Site, hook: HorsiesHook) -> None:
    submit(hook)
    assert moments(connected) == {"signals": [], "waits": [], "callbacks": [], "pauses": []}


def test_signals_and_waits_of_a_task_are_told_with_who_and_when(connected: Site, hook: HorsiesHook) -> None:
    (task_id,) = submit(hook)
    payload = {"by": "anna", "password": "hunter2", "url": f"https://a/horsies/callbacks/{TOKEN}"}
    hook.signal(task_id, "approved", payload)
    hook.signal(task_id, "later")
    park(hook, task_id, "approved", due="1 hour")
    consume(hook, task_id, "approved")
    park(hook, task_id, "@timer", due="1 hour")
    shown = moments(connected)
    approved, later = shown["signals"]
    assert (approved["name"], approved["life"], approved["round"]) == ("approved", 1, 1)
    assert approved["sent_at"] <= approved["received_at"]
    assert (approved["received_attempt"], bool(approved["sent_by"])) == (2, True)
    assert "anna" in approved["value"] and "hunter2" not in approved["value"]
    assert (later["name"], later["received_at"], later["value"]) == ("later", None, "null")
    first, timer = shown["waits"]
    assert (first["name"], first["end"], first["attempt"]) == ("approved", approved["received_at"], 1)
    assert (timer["name"], timer["end"]) == (None, None)
    assert timer["due_at"] > timer["start"]


def test_wait_ends_with_its_time_and_with_its_task(connected: Site, hook: HorsiesHook) -> None:
    (task_id,) = submit(hook)
    park(hook, task_id, "over", due="-1 minutes")
    park(hook, task_id, "open")
    over, still = sorted(moments(connected)["waits"], key=lambda wait: wait["name"] != "over")
    assert (over["end"] is not None, still["end"]) == (True, None)
    hook.cancel_task(task_id)
    assert all(wait["end"] for wait in moments(connected)["waits"])


def test_long_payloads_are_left_out(connected: Site, hook: HorsiesHook) -> None:
    (task_id,) = submit(hook)
    hook.signal(task_id, "long", {"password": "x" * 5_000})
    (signal,) = moments(connected)["signals"]
    assert signal["value"] == "(too long to show here)"


def test_only_the_newest_are_read(connected: Site, hook: HorsiesHook) -> None:
    (task_id,) = submit(hook)
    hook.signal(task_id, "first")
    sql(
        hook,
        "INSERT INTO airflow_horsies.messages (target, name, payload, sent_by)"
        " SELECT %s, 'n' || number, '1', 'a test' FROM generate_series(1, 300) AS number",
        task_id,
    )
    names = [signal["name"] for signal in moments(connected)["signals"]]
    assert names == [f"n{number}" for number in range(201, 301)]


def test_callback_is_told_from_its_opening_to_its_answer(connected: Site, hook: HorsiesHook) -> None:
    (task_id,) = submit(hook)
    open_callback(hook, 1, task_id, expires_at="2020-01-01T00:00:00Z", created_at="2019-12-31T00:00:00Z")
    answered = {"completed_at": "2026-01-02T00:00:00Z", "outcome": "COMPLETED", "answered_from": "203.0.113.7"}
    body = json.dumps({"token": TOKEN, "rows": 3})
    open_callback(hook, 2, task_id, **answered, body=body, heartbeats=4, heartbeat_at="2026-01-01T12:00:00Z")
    open_callback(hook, 3, task_id)
    first, second, third = moments(connected)["callbacks"]
    assert (first["state"], first["closed_at"]) == ("EXPIRED", "2020-01-01T00:00:00+00:00")
    assert (second["state"], second["answered_from"], second["heartbeats"]) == ("COMPLETED", "203.0.113.7", 4)
    assert second["heartbeat_at"] == "2026-01-01T12:00:00+00:00"
    assert '"rows": 3' in second["value"]
    assert (third["state"], third["closed_at"], third["value"]) == ("OPEN", None, None)


def test_pause_of_a_workflow_and_signals_to_what_is_inside_are_told(connected: Site, hook: HorsiesHook) -> None:
    graph = Graph(name="two", nodes={"a": node("add", a=1, b=2), "b": node("add", a=1, b=2, after=["a"])})
    workflow_id = hook.submit_workflow(graph, INSTANCE, AirflowTry(try_number=1)).task_id
    (first, _) = hook.read_workflow(workflow_id).nodes
    assert first.task_id
    hook.signal(workflow_id, "to_all")
    hook.signal(first.task_id, "to_one")
    park(hook, first.task_id, "to_one", workflow_id)
    shown = moments(connected)
    assert [signal["name"] for signal in shown["signals"]] == ["to_all", "to_one"]
    assert [(wait["horsies_task_id"], wait["round"]) for wait in shown["waits"]] == [(first.task_id, 1)]
    assert shown["pauses"] == []
    sql(
        hook,
        "UPDATE horsies_workflows SET status = 'PAUSED', updated_at = now() WHERE id = %s",
        workflow_id,
    )
    (pause,) = moments(connected)["pauses"]
    assert (pause["workflow_id"], pause["name"], pause["is_inside"]) == (workflow_id, "two", False)


def test_another_task_instance_sees_nothing_of_it(connected: Site, hook: HorsiesHook) -> None:
    (task_id,) = submit(hook)
    hook.signal(task_id, "approved")
    open_callback(hook, 1, task_id)
    other = type(INSTANCE)(dag_id=INSTANCE.dag_id, run_id=INSTANCE.run_id, task_id="other")
    hook.submit_task(TaskSpec(task_name="add", kwargs={"a": 1, "b": 2}), other, AirflowTry(try_number=1))
    shown = connected.ask(api_path(other)).json()["moments"]
    assert shown == {"signals": [], "waits": [], "callbacks": [], "pauses": []}
