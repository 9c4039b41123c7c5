"""What outside parties can do with a token and without one, in Airflow's real api-server."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from airflow_horsies.client.callbacks import submit_callback
from airflow_horsies.client.ledger import migrate_ledger
from airflow_horsies.client.reporting import WorkerClient
from airflow_horsies.core.callback import (
    CALLBACK_URL,
    MAX_BODY_BYTES,
    CallbackTerms,
    callback_url,
    digest_token,
    mint_token,
)
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskSpec
from airflow_horsies.ui.gate import SECURITY_HEADERS
from tests.integration.releases import MOVED
from tests.integration.test_changes import INSTANCE, tried
from tests.integration.test_submit import rows
from tests.integration.ui_site import PAGES, Site

pytestmark = [pytest.mark.parametrize("release", [MOVED], indirect=True), pytest.mark.usefixtures("of_site")]

SPEC = TaskSpec(task_name="echo", kwargs={"value": CALLBACK_URL})
JSON = {"content-type": "application/json"}
WELL_FORMED = mint_token()


@pytest.fixture
def asked(connected: Site, hook: HorsiesHook) -> Site:
    migrate_ledger(hook.client)
    return connected


def open_callback(hook: HorsiesHook, name: str = "one", **terms: timedelta) -> str:
    """The path of its address."""
    given = CallbackTerms(**{"expires_after": timedelta(minutes=5), **terms})
    instance = replace(INSTANCE, run_id=f"manual__{name}")
    sent = hook.client.drive(submit_callback(hook.client.scope, SPEC, given, instance, tried()))
    token, client = mint_token(), WorkerClient(hook.settings.database)
    assert sent.sent is not None
    base_url = client.mint_callback_token(sent.callback.id, sent.sent.task_id, digest_token(token))
    client.close()
    assert base_url is not None
    path = urlsplit(callback_url(base_url, token)).path
    assert path == f"{PAGES}/callbacks/{token}"
    return path


def post(site: Site, path: str, content: Any = b"{}", **headers: str) -> httpx.Response:
    return site.ask(path, None, "POST", content=content, headers={**JSON, **headers})


def outcome(hook: HorsiesHook) -> list[tuple[object, ...]]:
    return rows(hook, "SELECT outcome, body FROM airflow_horsies.callbacks")


def raw(site: Site, text: bytes, *, seconds: float = 20) -> bytes:
    """The first bytes of the response to what no client would send."""
    host, _, port = urlsplit(site.origin).netloc.partition(":")
    with socket.create_connection((host, int(port)), timeout=seconds) as connection:
        connection.sendall(text)
        return connection.recv(4096)


def test_the_first_answer_counts(asked: Site, hook: HorsiesHook) -> None:
    path = open_callback(hook)
    first = post(asked, path, b'{"a": 1, "b": 2}')
    assert (first.status_code, first.json()) == (200, {"status": "accepted"})
    assert [header for header in SECURITY_HEADERS if header.decode() not in first.headers] == []
    again = post(asked, path, b'{"b":2,"a":1}')
    assert (again.status_code, again.json()) == (200, {"status": "repeated"})
    assert [post(asked, path, b"{}").status_code, post(asked, f"{path}/fail", b'{"a": 1, "b": 2}').status_code] == [
        409
    ] * 2
    assert post(asked, f"{path}/heartbeat", b"").status_code == 409
    assert outcome(hook) == [("COMPLETED", '{"a": 1, "b": 2}')]


def test_a_failure_is_an_answer_too(asked: Site, hook: HorsiesHook) -> None:
    path = open_callback(hook)
    assert post(asked, f"{path}/fail", b'"no"').status_code == 200
    assert post(asked, path, b'"no"').status_code == 409
    assert outcome(hook) == [("FAILED", '"no"')]


def test_an_answer_without_a_body_is_null(asked: Site, hook: HorsiesHook) -> None:
    path = open_callback(hook)
    assert asked.ask(path, None, "POST").status_code == 200
    assert outcome(hook) == [("COMPLETED", "null")]


def test_what_has_expired_is_gone(asked: Site, hook: HorsiesHook) -> None:
    path = open_callback(hook, expires_after=timedelta(seconds=1))
    time.sleep(1.1)
    for tail in ("", "/fail", "/heartbeat"):
        assert post(asked, path + tail).status_code == 410
    assert outcome(hook) == [(None, None)]


def test_a_heartbeat_tells_how_long_it_holds(asked: Site, hook: HorsiesHook) -> None:
    path = open_callback(hook, expires_after=timedelta(seconds=2), max_duration=timedelta(seconds=60))
    for _ in range(3):
        time.sleep(1)
        beat = asked.ask(f"{path}/heartbeat", None, "POST")
        assert (beat.status_code, set(beat.json())) == (200, {"status", "expires_at"})
    assert post(asked, path).status_code == 200


GUESSES = (
    WELL_FORMED,
    WELL_FORMED[:-1],
    f"{WELL_FORMED}A",
    "hcb_",
    "x",
    "fail",
    "%00",
    "%ff%fe",
    "..",
    "%2e%2e",
    "a%2Fb",
    "*",
    "'; DROP TABLE x; --".replace(" ", "%20"),
    "A" * 4_000,
)


def test_guessers_are_told_nothing(asked: Site, hook: HorsiesHook) -> None:
    real = open_callback(hook)
    digest = digest_token(real.rpartition("/")[2]).hex()
    bodies = set()
    for guess in (*GUESSES, digest, real.rpartition("/")[2][:-1]):
        for tail in ("", "/fail", "/heartbeat"):
            status, text = asked.ask_as_is(f"{PAGES}/callbacks/{guess}{tail}", None, "POST", **JSON)
            if status != 405:
                assert status == 404, guess
                bodies.add(json.loads(text)["detail"])
    # A path with another number of parts is no address of a callback.
    assert bodies <= {"There is no callback at this address.", "Not Found"}
    assert outcome(hook) == [(None, None)]


def test_an_unknown_token_takes_as_long_as_a_malformed_one(asked: Site, hook: HorsiesHook) -> None:
    open_callback(hook)

    def seconds(token: str) -> float:
        began = time.perf_counter()
        assert post(asked, f"{PAGES}/callbacks/{token}").status_code == 404
        return time.perf_counter() - began

    seconds("warm")
    pairs = [(seconds(mint_token()), seconds("malformed")) for _ in range(30)]
    unknown, malformed = median(one for one, _ in pairs), median(other for _, other in pairs)
    print(f"unknown {unknown * 1000:.1f} ms, malformed {malformed * 1000:.1f} ms")
    assert 0.5 < unknown / malformed < 2


def test_no_other_method_answers(asked: Site, hook: HorsiesHook) -> None:
    path = open_callback(hook)
    for tail in ("", "/fail", "/heartbeat"):
        for method in ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
            assert asked.ask(path + tail, None, method).status_code == 405
        for name in ("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"):
            assert asked.ask(f"{path}{tail}?_method=POST", None, headers={name: "POST"}).status_code == 405
    assert outcome(hook) == [(None, None)]


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-type": "application/json; charset=utf-16"},
        {"content-type": "application/jsonp"},
        {"content-type": ""},
        {"content-encoding": "gzip"},
        {"content-encoding": "identity, gzip"},
        {"content-encoding": "br"},
    ],
)
def test_another_kind_of_body_is_refused(asked: Site, hook: HorsiesHook, headers: dict[str, str]) -> None:
    path = open_callback(hook)
    content = gzip.compress(b"{}") if "gzip" in headers.get("content-encoding", "") else b"{}"
    assert post(asked, path, content, **headers).status_code == 415
    assert outcome(hook) == [(None, None)]


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"{} {}",
        b"\xff",
        b"\xef\xbb\xbf{}",
        b"NaN",
        b"[Infinity]",
        b"1e999",
        b'"\\u0000"',
        b'{"\\u0000": 1}',
        b'"\\ud800"',
        b'{"__classname__": "os.system", "__data__": "id"}',
        b'[{"__type": "x"}]',
        b"[" * 101 + b"]" * 101,
        b"[" * 100_000,
        b"9" * 5_000,
    ],
)
def test_what_is_no_value_is_refused(asked: Site, hook: HorsiesHook, content: bytes) -> None:
    path = open_callback(hook)
    answer = post(asked, path, content)
    assert answer.status_code == 400
    assert "classname" not in answer.text
    assert outcome(hook) == [(None, None)]


def test_a_body_is_measured_while_it_arrives(asked: Site, hook: HorsiesHook) -> None:
    path = open_callback(hook)

    def parts(size: int) -> Iterator[bytes]:
        yield b'"'
        for _ in range(size // 1024):
            yield b"x" * 1024
        yield b'"'

    too_large = b'"' + b"x" * MAX_BODY_BYTES + b'"'
    for content in (too_large, parts(MAX_BODY_BYTES), parts(20 * MAX_BODY_BYTES)):
        # The server may close the connection before all of it is sent.
        with suppress(httpx.WriteError):
            assert post(asked, path, content).status_code == 413
    assert outcome(hook) == [(None, None)]
    largest = b'"' + b"x" * (MAX_BODY_BYTES - 2) + b'"'
    assert post(asked, path, iter([largest])).status_code == 200
    assert rows(hook, "SELECT length(body) FROM airflow_horsies.callbacks") == [(MAX_BODY_BYTES,)]


def test_a_length_that_is_wrong_does_no_harm(asked: Site, hook: HorsiesHook) -> None:
    path = open_callback(hook)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    for length in ("-1", "x", "1, 2", "99999999999999999999"):
        answer = raw(
            asked,
            f"{head}Content-Length: {length}\r\n\r\n{{}}".encode()
            if length != "99999999999999999999"
            else f"{head}Content-Length: x{length}\r\n\r\n{{}}".encode(),
        )
        assert answer.split(b" ")[1:2] != [b"200"]
    # Longer than what comes: the server waits, and gives up.
    began = time.monotonic()
    answer = raw(asked, f"{head}Content-Length: 50\r\n\r\n{{}}".encode())
    assert answer.split(b" ")[1] == b"408"
    assert time.monotonic() - began < 18
    # Shorter: the rest is no part of it. The server may refuse the rest before the answer is sent.
    answer = raw(asked, f"{head}Content-Length: 2\r\n\r\n{{}}garbage".encode())
    assert answer.split(b" ")[1] in (b"200", b"400")
    assert post(asked, path).json()["status"] in ("accepted", "repeated")
    assert outcome(hook) == [("COMPLETED", "{}")]


def test_no_header_changes_who_asks_or_what(asked: Site, hook: HorsiesHook) -> None:
    path = open_callback(hook)
    for name in ("X-Original-URL", "X-Rewrite-URL", "X-Forwarded-Uri", "X-Forwarded-Prefix"):
        status, _ = asked.ask_as_is(f"{PAGES}/callbacks/{WELL_FORMED}", None, "POST", **JSON, **{name: path})
        assert status == 404
    answer = post(
        asked, path, **{"X-Forwarded-For": "198.51.100.7", "Forwarded": "for=198.51.100.8", "Host": "evil.test"}
    )
    assert answer.status_code == 200
    assert "evil" not in answer.text
    ((sender,),) = rows(hook, "SELECT answered_from FROM airflow_horsies.callbacks")
    assert sender == "127.0.0.1"


def test_a_login_is_neither_needed_nor_of_use(asked: Site, hook: HorsiesHook) -> None:
    for user in (None, "viewer", "admin"):
        for with_cookie in (False, True):
            unknown = asked.ask(f"{PAGES}/callbacks/{WELL_FORMED}", user, "POST", with_cookie=with_cookie, json={})
            assert unknown.status_code == 404
    path = open_callback(hook)
    assert post(asked, path, authorization="Bearer nonsense", origin="https://elsewhere.test").status_code == 200


def test_two_answers_at_once_are_one(asked: Site, hook: HorsiesHook) -> None:
    path = open_callback(hook)
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda number: post_alone(asked, path, str(number)), range(6)))
    assert sorted(answers) == [200] + [409] * 5
    assert outcome(hook) == [("COMPLETED", str(answers.index(200)))]


def post_alone(site: Site, path: str, body: str) -> int:
    connection = http.client.HTTPConnection(urlsplit(site.origin).netloc, timeout=30)
    try:
        connection.request("POST", path, body, headers=JSON)
        return connection.getresponse().status
    finally:
        connection.close()


@contextmanager
def locked(hook: HorsiesHook) -> Iterator[None]:
    with psycopg.connect(**hook.settings.database.connect_args) as other:
        other.execute("LOCK TABLE airflow_horsies.callbacks, airflow_horsies.callback_tokens IN ACCESS EXCLUSIVE MODE")
        yield


def test_a_locked_database_is_told_quickly_and_harms_no_other_route(asked: Site, hook: HorsiesHook) -> None:
    path = open_callback(hook)
    with locked(hook), ThreadPoolExecutor(12) as pool:
        # The tables are locked until all have been answered.
        waiting = [pool.submit(post_alone, asked, path, "1") for _ in range(12)]
        time.sleep(0.5)
        assert asked.ask(f"{PAGES}/api/overview", "viewer").status_code == 200
        assert {each.result() for each in waiting} == {503}
    assert post(asked, path).status_code == 200


def test_the_token_is_in_no_log_and_no_table(asked: Site, hook: HorsiesHook) -> None:
    path = open_callback(hook)
    token = path.rpartition("/")[2]
    for tail in ("/heartbeat", "", "", "/fail"):
        post(asked, path + tail)
    asked.ask(path, None)
    asked.ask(path, None, headers={"accept": "text/html"})
    asked.ask(path, "admin")
    time.sleep(1)
    log = asked.written_log()
    assert "/horsies/callbacks/hcb_***" in log
    assert token not in log
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        tables = connection.execute(
            "SELECT quote_ident(table_schema) || '.' || quote_ident(table_name) FROM information_schema.tables"
            " WHERE table_schema NOT IN ('pg_catalog', 'information_schema')"
        ).fetchall()
        assert len(tables) > 10
        for (table,) in tables:
            found = connection.execute(
                f"SELECT count(*) FROM {table} AS t WHERE to_jsonb(t)::text LIKE %s".encode(), (f"%{token[4:]}%",)
            ).fetchone()
            assert found == (0,), table
