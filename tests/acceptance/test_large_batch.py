"""100,000 items in chunks through the real stack: their values, the memory of the Airflow task, and its page."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_horsies.embedded.stack import EmbeddedStack
from tests.acceptance.conftest import AirflowApi

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

LARGE, SMALL = 100_000, 1_000
RUN_SECONDS = 900.0
MOST_MB, MOST_TIMES = 400, 3
ROUNDS = 30


class Peak:
    """The memory of the largest process that the executor has started."""

    def __init__(self, scheduler: int) -> None:
        self._scheduler = psutil.Process(scheduler)
        self._ended = threading.Event()
        self.megabytes = 0.0

    def sample(self) -> None:
        while not self._ended.wait(0.2):
            for process in self._scheduler.children(recursive=True):
                with contextlib.suppress(OSError, ValueError):
                    status = Path(f"/proc/{process.pid}/status").read_text()
                    (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
                    self.megabytes = max(self.megabytes, int(kilobytes) / 1024)

    def end(self) -> None:
        self._ended.set()


@pytest.fixture
def peak(stack: EmbeddedStack) -> Iterator[Peak]:
    peak = Peak(stack.airflow.processes["scheduler"].pid)
    sampler = threading.Thread(target=peak.sample)
    sampler.start()
    yield peak
    peak.end()
    sampler.join()


def add_all(api: AirflowApi, count: int) -> str:
    """A run whose batch added all its numbers; where its page reads from."""
    run_id = api.trigger("large_batch", count=count)
    assert api.wait("large_batch", run_id, RUN_SECONDS) == "success", api.story("large_batch", run_id)
    assert api.xcom("large_batch", run_id, "add") == [number + 1 for number in range(count)]
    (link,) = api.call("GET", f"/dags/large_batch/dagRuns/{run_id}/taskInstances/add/links")["extra_links"].values()
    return str(link.replace("/horsies/", "/horsies/api/", 1))


def shortest(*asks: Callable[[], Any]) -> list[float]:
    """The shortest time of each, in seconds; they take turns."""
    seconds: list[list[float]] = [[] for _ in asks]
    for _ in range(ROUNDS):
        for ask, spent in zip(asks, seconds, strict=True):
            began = time.perf_counter()
            ask()
            spent.append(time.perf_counter() - began)
    return [min(spent) for spent in seconds]


def test_a_hundred_thousand_items_need_little_memory_and_their_page_answers_like_that_of_few(
    api: AirflowApi, peak: Peak
) -> None:
    pages = {count: add_all(api, count) for count in (SMALL, LARGE)}
    print(f"the largest process took {peak.megabytes:.0f} MB")
    assert 50 < peak.megabytes < MOST_MB
    for tail in ("", "/items?offset=500"):
        shown = {count: api.get_page(f"{page}{tail}") for count, page in pages.items()}
        if tail:
            assert {count: page["total"] for count, page in shown.items()} == {SMALL: SMALL, LARGE: LARGE}
        small, large = shortest(*(partial(api.get_page, f"{page}{tail}") for page in pages.values()))
        print(f"{tail or 'page'}: {small * 1e3:.0f} ms and {large * 1e3:.0f} ms, {large / small:.2f} times")
        assert large < MOST_TIMES * small, f"{tail or 'page'}: {small:.3f} s and {large:.3f} s"
