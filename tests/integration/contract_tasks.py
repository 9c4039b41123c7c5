"""Tasks that real workers of every supported release run for the tests."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from horsies import AppConfig, Horsies, PostgresConfig, RecoveryConfig, RetryPolicy, TaskError, TaskResult

app = Horsies(
    AppConfig(
        broker=PostgresConfig(database_url=os.environ["HORSIES_DATABASE_URL"]),
        recovery=RecoveryConfig(
            runner_heartbeat_interval_ms=1_000,
            claimer_heartbeat_interval_ms=1_000,
            running_stale_threshold_ms=2_000,
            claimed_stale_threshold_ms=2_000,
            check_interval_ms=1_000,
            worker_state_snapshot_interval_ms=1_000,
        ),
    )
)


@app.task("add")
def add(*, a: int, b: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=a + b)


@app.task("echo")
def echo(*, value: str) -> TaskResult[str, TaskError]:
    return TaskResult(ok=value)


@app.task("nothing")
def nothing() -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)


@app.task("fail")
def fail(*, code: str) -> TaskResult[None, TaskError]:
    return TaskResult(err=TaskError(error_code=code, message=f"asked to fail with {code}", data={"code": code}))


@app.task("blow_up")
def blow_up(*, text: str) -> TaskResult[None, TaskError]:
    raise RuntimeError(text)


@app.task("die_once")
def die_once(*, marker: str) -> TaskResult[str, TaskError]:
    """Kills its own process the first time: nothing is there to report it but horsies' recovery."""
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return TaskResult(ok="survived")


@app.task("park")
def park(*, marker: str) -> TaskResult[str, TaskError]:
    """Runs until the file is there, and then ends to be retried, until the second file is there."""
    if Path(f"{marker}.done").exists():
        return TaskResult(ok="resumed")
    while not Path(marker).exists():
        time.sleep(0.01)
    return TaskResult(err=TaskError(error_code="AWAITING_SIGNAL", message="Parked."))


@app.task("sleep")
def sleep(*, seconds: float) -> TaskResult[None, TaskError]:
    time.sleep(seconds)
    return TaskResult(ok=None)


@app.task("mixed")
def mixed(*, n: int, text: str, items: list[int], flag: bool, nested: dict[str, float]) -> TaskResult[int, TaskError]:
    return TaskResult(ok=n)


@app.task("with_fixed_retries", retry_policy=RetryPolicy.fixed([10, 60], auto_retry_for=["RATE_LIMITED"]))
def with_fixed_retries(*, a: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=a)


@app.task(
    "with_exponential_retries",
    retry_policy=RetryPolicy.exponential(
        5, max_retries=4, auto_retry_for=["RATE_LIMITED", "WORKER_CRASHED"], jitter=False, max_delay_seconds=60
    ),
    timeout_ms=90_000,
)
def with_exponential_retries(*, a: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=a)
