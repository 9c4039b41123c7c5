"""An outside party answers a DAG run over HTTP, once, and its token is nowhere but with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from airflow_horsies.core.callback import mint_token
from airflow_horsies.embedded.stack import AIRFLOW_DATABASE, HORSIES_DATABASE, EmbeddedStack
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskInstanceKey
from airflow_horsies.ui.limiting import DEFAULT_RATE
from tests.acceptance.conftest import AirflowApi

pytestmark = pytest.mark.timeout(400)

DAG_ID = "callback"
OF_DATABASE = """
SELECT quote_ident(table_schema) || '.' || quote_ident(table_name)
FROM information_schema.tables
WHERE table_schema NOT IN ('pg_catalog', 'information_schema') AND table_type = 'BASE TABLE'
"""


def address_of(api: AirflowApi, stack: EmbeddedStack, place: Path) -> str:
    api.until(place.exists, 120, "the address")
    address = place.read_text()
    assert address.startswith(f"{stack.airflow.base_url}/horsies/callbacks/hcb_")
    return address


def answer(address: str, value: object, tail: str = "") -> tuple[int, str]:
    response = httpx.post(address + tail, json=value, timeout=30)
    return response.status_code, response.text


def places_with(stack: EmbeddedStack, secret: str) -> Iterator[str]:
    """Every table and every file of the stack in which the text is, also in hexadecimal."""
    for database in (AIRFLOW_DATABASE, HORSIES_DATABASE):
        with psycopg.connect(**stack.postgres.conninfo(database)) as connection:
            tables = [table for (table,) in connection.execute(OF_DATABASE)]
            assert len(tables) > 10
            for table in tables:
                query = f"SELECT count(*) FROM {table} AS t WHERE t::text LIKE ANY(%s)".encode()
                found = connection.execute(query, ([f"%{secret}%", f"%{secret.encode().hex()}%"],)).fetchone()
                if found != (0,):
                    yield f"{database} {table}"
    for folder, _, names in os.walk(stack.folder):
        # What the database writes is searched above, and Java is large.
        if {"postgres", "java"} & set(Path(folder).parts[len(stack.folder.parts) :]):
            continue
        for name in names:
            path = Path(folder, name)
            if path.is_file() and secret.encode() in path.read_bytes():
                yield str(path)


def pages_of(api: AirflowApi, run_id: str) -> str:
    """What Airflow and our pages show of the task instance."""
    base = f"/dags/{DAG_ID}/dagRuns/{run_id}/taskInstances/ask"
    entries = api.call("GET", f"{base}/xcomEntries")["xcom_entries"]
    shown = [str(api.xcom(DAG_ID, run_id, "ask", key=entry["key"])) for entry in entries]
    for path in (base, f"{base}/tries", f"{base}/links", f"/dags/{DAG_ID}/dagRuns/{run_id}", "/eventLogs?limit=100"):
        shown.append(str(api.call("GET", path)))
    tries = api.tasks(DAG_ID, run_id)["ask"]["try_number"]
    shown += [api.log(DAG_ID, run_id, "ask", number + 1) for number in range(tries)]
    links = api.call("GET", f"{base}/links")["extra_links"]
    shown += [str(api.get_page(urlsplit(link).path)) for link in links.values() if link and "horsies" in link]
    return "\n".join(shown)


def test_answer_counts_once_and_its_token_is_nowhere(
    api: AirflowApi, stack: EmbeddedStack, hook: HorsiesHook, tmp_path: Path
) -> None:
    place = tmp_path / "address"
    run_id = api.trigger(DAG_ID, place=str(place))
    address = address_of(api, stack, place)
    token = address.rpartition("/")[2]
    # A link scanner, and somebody who guesses.
    assert httpx.get(address, follow_redirects=True).status_code == 405
    assert answer(f"{address[:-1]}{'A' if address[-1] != 'A' else 'B'}", {"approved": False})[0] == 404
    assert answer(address, None, "/heartbeat")[0] == 200
    assert api.state(DAG_ID, run_id, "ask") in ("running", "deferred")

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda number: answer(address, {"by": number})[0], range(4)))
    assert sorted(answers) == [200, 409, 409, 409]
    first = {"by": answers.index(200)}
    assert api.wait(DAG_ID, run_id) == "success", api.story(DAG_ID, run_id)
    # The same again is harmless, also after the end; another one is refused.
    assert [answer(address, first)[0], answer(address, {"by": 9})[0], answer(address, first, "/fail")[0]] == [
        *(200, 409, 409),
    ]
    assert api.xcom(DAG_ID, run_id, "ask") == first
    assert api.tasks(DAG_ID, run_id)["ask"]["try_number"] == 1
    assert len(hook.read_submissions(TaskInstanceKey(dag_id=DAG_ID, run_id=run_id, task_id="ask"))) == 1

    shown = pages_of(api, run_id)
    assert "hcb_***" in shown
    assert token[4:] not in shown
    assert list(places_with(stack, token[4:])) == []
    # The search finds what is there.
    assert list(places_with(stack, run_id))


def test_error_of_the_task_that_hands_it_out_does_not_tell_it(
    api: AirflowApi, stack: EmbeddedStack, tmp_path: Path
) -> None:
    place = tmp_path / "address"
    run_id = api.trigger(DAG_ID, place=str(place), fails=True)
    address = address_of(api, stack, place)
    token = address.rpartition("/")[2]
    assert api.wait(DAG_ID, run_id) == "failed"
    shown = pages_of(api, run_id)
    assert "cannot ask at" in shown
    assert token[4:] not in shown
    assert list(places_with(stack, token[4:])) == []
    # It has failed for good: who answers now is told so, and nothing of the run changes.
    assert answer(address, {"approved": True})[0] in (200, 409, 410)
    assert api.run_state(DAG_ID, run_id) == "failed"


def test_guessers_are_told_nothing_and_slowed_down(stack: EmbeddedStack) -> None:
    """The last one: the tests share an address, and so a limit."""
    told = set()
    with httpx.Client(timeout=30) as client:
        for _ in range(DEFAULT_RATE * 3):
            response = client.post(f"{stack.airflow.base_url}/horsies/callbacks/{mint_token()}", json={})
            told.add((response.status_code, response.text))
            if response.status_code == 429:
                break
    assert told == {
        (404, '{"detail":"There is no callback at this address."}'),
        (429, '{"detail":"There are too many requests. Try again later."}'),
    }
    assert int(response.headers["retry-after"]) >= 1
    # The rest of Airflow goes on.
    assert httpx.get(f"{stack.airflow.base_url}/api/v2/monitor/health", timeout=30).status_code == 200
