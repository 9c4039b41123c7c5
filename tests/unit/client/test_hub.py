from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from airflow_horsies.client import hub as hub_module
from airflow_horsies.client.hub import Hub, Waiter, hub_of
from airflow_horsies.db.backoff import Backoff
from airflow_horsies.db.connection import Database
from airflow_horsies.exceptions import (
    AccessDenied,
    CutoverPending,
    DatabaseBusy,
    DatabaseUnreachable,
    HorsiesError,
    SchemaMissing,
)
from airflow_horsies.ledger.schema import read_version
from airflow_horsies.models import LogCursor, LogLine, TaskNews, TaskState

DATABASE = Database(connect_args={"dbname": "work"}, listen_args={"dbname": "work"})


class ScriptedHub(Hub):
    """Plays one step for each time it would connect; it never does."""

    def __init__(self, *steps: Any) -> None:
        super().__init__(DATABASE, listens=True)
        self.steps = list(steps)
        self.connected = 0

    async def _serve_while_connected(self) -> None:
        self.connected += 1
        await self.steps.pop(0)(self)


async def end_everything(hub: Hub) -> None:
    hub._deliver(dict.fromkeys(hub._waiters, TaskState.COMPLETED))
    while hub._waiters:
        await asyncio.sleep(0)
    raise hub_module._Idle


def raising(error: Exception) -> Any:
    async def step(hub: Hub) -> None:
        raise error

    return step


def test_waiter_hears_of_each_end_once() -> None:
    async def check() -> None:
        waiter = Waiter(["a", "b"])
        waiter.deliver("a", TaskState.COMPLETED)
        waiter.deliver("a", TaskState.FAILED)
        waiter.deliver("stranger", TaskState.FAILED)
        await asyncio.wait_for(waiter.news(), 1)
        assert (waiter.pending, waiter.ended) == ({"b"}, {"a": TaskState.COMPLETED})
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(waiter.news(), 0.05)
        waiter.deliver("b", None)
        await asyncio.wait_for(waiter.news(), 1)
        assert waiter.ended == {"a": TaskState.COMPLETED, "b": None}
        await asyncio.wait_for(waiter.news(), 1)  # nothing is pending, so it does not wait

    asyncio.run(check())


def test_waiter_is_told_what_keeps_the_hub_from_hearing() -> None:
    async def check() -> None:
        waiter = Waiter(["a"])
        waiter.fail(SchemaMissing("no tables"))
        for _ in range(2):
            with pytest.raises(SchemaMissing):
                await asyncio.wait_for(waiter.news(), 1)

    asyncio.run(check())


def test_waiter_that_comes_while_the_hub_ends_is_served() -> None:
    """The hub takes a moment to close its connections, and its task is not done until then."""

    async def check() -> None:
        closing, closed = asyncio.Event(), asyncio.Event()

        async def close_slowly(hub: Hub) -> None:
            await end_everything_once(hub)
            closing.set()
            await closed.wait()
            raise hub_module._Idle

        async def end_everything_once(hub: Hub) -> None:
            with pytest.raises(hub_module._Idle):
                await end_everything(hub)

        hub = ScriptedHub(close_slowly, end_everything)
        async with hub.subscribe(["a"]) as first:
            await first.news()
        await closing.wait()
        async with hub.subscribe(["b"]) as late:
            closed.set()
            await asyncio.wait_for(late.news(), 1)
            assert late.ended == {"b": TaskState.COMPLETED}
        assert hub.connected == 2

    asyncio.run(check())


@pytest.mark.parametrize(
    "error",
    [DatabaseUnreachable("restarting"), DatabaseBusy("locked"), CutoverPending("upgrading"), AccessDenied("not now")],
    ids=lambda error: type(error).__name__,
)
def test_hub_connects_again_and_serves_on(error: HorsiesError) -> None:
    async def check() -> None:
        hub = ScriptedHub(*[raising(error)] * 3, end_everything)
        hub._reconnecting = Backoff(0.01, 1)
        async with hub.subscribe(["a"]) as waiter:
            await asyncio.wait_for(waiter.news(), 1)
        assert hub.connected == 4
        assert 0.04 <= hub._reconnecting.next_pause() <= 0.08

    asyncio.run(check())


def test_hub_without_waiters_does_not_try_for_ever() -> None:
    async def check() -> None:
        gone = asyncio.Event()

        async def lose_the_server(hub: Hub) -> None:
            await gone.wait()
            raise DatabaseUnreachable("gone")

        hub = ScriptedHub(lose_the_server)
        async with hub.subscribe(["a"]):
            await asyncio.sleep(0)
        gone.set()
        assert hub._task is not None
        await asyncio.wait_for(hub._task, 1)

    asyncio.run(check())


@pytest.mark.parametrize(
    ("error", "expected"),
    [(SchemaMissing("no tables"), "no tables"), (ValueError("s3cret"), "Waiting failed: ValueError. See the log")],
    ids=["ours", "unexpected"],
)
def test_error_that_lasts_reaches_every_waiter_and_the_next_waiter_starts_anew(
    monkeypatch: pytest.MonkeyPatch, error: Exception, expected: str
) -> None:
    monkeypatch.setattr(hub_module, "LASTING_SECONDS", 0.2)

    async def check() -> None:
        tries = 8 if isinstance(error, HorsiesError) else 1
        hub = ScriptedHub(*[raising(error)] * tries)
        hub._reconnecting = Backoff(0.06, 0.06)
        async with hub.subscribe(["a"]) as one, hub.subscribe(["a", "b"]) as two:
            for waiter in (one, two):
                with pytest.raises(HorsiesError, match=expected):
                    await asyncio.wait_for(waiter.news(), 1)
        hub.steps = [end_everything]
        async with hub.subscribe(["a"]) as later:
            await asyncio.wait_for(later.news(), 1)
            assert later.ended == {"a": TaskState.COMPLETED}

    asyncio.run(check())


def test_cancelled_waiter_leaves_the_hub_and_the_others_alone() -> None:
    async def check() -> None:
        go = asyncio.Event()

        async def end_everything_later(hub: Hub) -> None:
            await go.wait()
            await end_everything(hub)

        hub = ScriptedHub(end_everything_later)

        async def wait() -> dict[str, TaskState | None]:
            async with hub.subscribe(["a"]) as waiter:
                await waiter.news()
                return waiter.ended

        doomed, other = asyncio.create_task(wait()), asyncio.create_task(wait())
        await asyncio.sleep(0)
        doomed.cancel()
        with pytest.raises(asyncio.CancelledError):
            await doomed
        assert hub._task is not None and not hub._task.done()
        go.set()
        assert await asyncio.wait_for(other, 1) == {"a": TaskState.COMPLETED}

    asyncio.run(check())


def test_hub_is_shared_by_database_and_kept_apart_by_everything_else() -> None:
    other = Database(connect_args={"dbname": "other"}, listen_args={"dbname": "other"})

    async def check() -> None:
        hub = hub_of(DATABASE, listens=True)
        assert hub_of(Database({"dbname": "work"}, {"dbname": "work"}), listens=True) is hub
        assert hub_of(DATABASE, listens=False) is not hub
        assert hub_of(other, listens=True) is not hub

    asyncio.run(check())


def test_hub_is_shared_whatever_the_token_and_connects_with_the_newest() -> None:
    def with_token(token: str) -> Database:
        args = {"dbname": "work", "password": token}
        return Database(args, args, has_tokens=True)

    async def check() -> None:
        hub = hub_of(with_token("first"), listens=True)
        assert hub_of(with_token("second"), listens=True) is hub
        assert hub.database.connect_args["password"] == "second"
        assert hub_of(replace(with_token("third"), has_tokens=False), listens=True) is not hub

    asyncio.run(check())


def test_hub_that_nobody_uses_is_forgotten_when_another_is_asked_for() -> None:
    async def check() -> None:
        for number in range(5):
            args = {"dbname": "work", "password": str(number)}
            hub_of(Database(args, args), listens=True)
        (hubs,) = hub_module._hubs._values.values()
        assert len(hubs) == 1

    asyncio.run(check())


def test_hubs_of_closed_loops_are_forgotten() -> None:
    async def use() -> None:
        hub_of(DATABASE, listens=True)

    for _ in range(5):
        asyncio.run(use())
    assert len(hub_module._hubs) <= 1


NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
LONG_AGO = LogCursor(1, 1)
CONNECTION: Any = SimpleNamespace(closed=False)


def lines(*numbers: int) -> TaskNews:
    return TaskNews(
        lines=tuple(
            LogLine(attempt=1, number=number, logged_at=NOON, level="INFO", text=str(number)) for number in numbers
        )
    )


class Ledger:
    """Stands where the statements would run; knows what each reader asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, version: int = 2) -> None:
        self.version = version
        self.news: dict[str, TaskNews] = {}
        self.asked: list[dict[str, LogCursor]] = []
        self.looked_for_tables = 0
        self.error: Exception | None = None
        monkeypatch.setattr(hub_module, "run_async", self.run)

    async def run(self, connection: Any, make_script: Any, limits: Any) -> Any:
        if make_script is read_version:
            self.looked_for_tables += 1
            return self.version
        self.asked.append(make_script.args[0])
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return self.news


def test_followers_are_read_for_at_once_after_what_each_has_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(monkeypatch)
    ledger.news = {"a": lines(2, 3), "b": lines(1)}

    async def check() -> None:
        one = Waiter(["a"], {"a": LogCursor(1, 2)})
        two = Waiter(["a", "b", "c"], {"a": LONG_AGO})
        idle = Waiter(["d"])
        follower = hub_module._Follower()
        await follower.look(CONNECTION, [one, two, idle])
        assert ledger.asked == [{"a": LONG_AGO, "b": LogCursor(), "c": LogCursor()}]
        await asyncio.wait_for(asyncio.gather(one.news(), two.news()), 1)
        assert (one.take(), two.take(), idle.take()) == ({"a": lines(2, 3)}, ledger.news, {})
        assert one.take() == {}

    asyncio.run(check())


def test_follower_looks_only_when_it_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(monkeypatch)

    async def check() -> None:
        waiter = Waiter(["a"], {})
        follower = hub_module._Follower()
        for _ in range(5):
            await follower.look(CONNECTION, [waiter])
        assert (len(ledger.asked), ledger.looked_for_tables) == (1, 1)
        follower.due = 0
        await follower.look(CONNECTION, [waiter])
        assert (len(ledger.asked), ledger.looked_for_tables) == (2, 1)

    asyncio.run(check())


def test_nothing_is_read_for_those_who_do_not_follow_or_have_not_taken_what_there_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger = Ledger(monkeypatch)

    async def check() -> None:
        behind = Waiter(["a"], {})
        behind.add_news({"a": lines(1)})
        ended = Waiter(["a"], {})
        ended.deliver("a", TaskState.COMPLETED)
        await hub_module._Follower().look(CONNECTION, [Waiter(["a"]), behind, ended])
        assert (ledger.asked, ledger.looked_for_tables) == ([], 0)

    asyncio.run(check())


def test_follower_that_comes_during_a_read_is_not_told_of_lines_after_those_it_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger = Ledger(monkeypatch)
    ledger.news = {"a": lines(2)}

    async def check() -> None:
        early, late = Waiter(["a"], {"a": LONG_AGO}), Waiter(["a"], {})
        waiters = {early}
        look = asyncio.create_task(hub_module._Follower().look(CONNECTION, waiters))
        await asyncio.sleep(0)
        waiters.add(late)
        await look
        assert (early.take(), late.take()) == (ledger.news, {})

    asyncio.run(check())


@pytest.mark.parametrize("version", [0, 1])
def test_ledger_without_the_tables_is_left_alone_for_long(monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    ledger = Ledger(monkeypatch, version=version)

    async def check() -> None:
        follower = hub_module._Follower()
        await follower.look(CONNECTION, [Waiter(["a"], {})])
        assert ledger.asked == []
        assert follower.due > asyncio.get_running_loop().time() + hub_module.POLL_SECONDS - 1

    asyncio.run(check())


def test_logs_that_may_not_be_read_end_nothing_and_a_lost_connection_is_opened_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger(monkeypatch)

    async def check() -> None:
        ledger.error = psycopg.errors.InsufficientPrivilege("permission denied for table logs")
        follower = hub_module._Follower()
        await follower.look(CONNECTION, [Waiter(["a"], {})])
        assert "Cannot read the log lines and the progress of tasks: permission denied" in caplog.text
        ledger.error = psycopg.OperationalError("server closed the connection")
        with pytest.raises(psycopg.OperationalError):
            await hub_module._Follower().look(CONNECTION, [Waiter(["a"], {})])

    asyncio.run(check())
