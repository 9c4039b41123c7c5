"""What the tab of a very large batch costs, beside the same read item by item."""

from __future__ import annotations

import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from airflow_horsies.client.pages import PlacedItem
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.wire.reading import read_tasks
from airflow_horsies.wire.statements import Wire
from tests.integration.many_tasks import BATCH, fill
from tests.integration.releases import MOVED, keeps_history
from tests.integration.test_ui_scale import NO_SESSION, RIGHTS, Scale, answer, make_site
from tests.integration.test_ui_scale import Site as Pages

with warnings.catch_warnings():
    # Airflow's security module brings Starlette's test client along, which warns of the httpx it finds.
    warnings.simplefilter("ignore")
    from airflow_horsies.ui.routes import instance as instance_routes
    from airflow_horsies.ui.routes.instance import Sort

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("release", [MOVED], indirect=True)]

ITEMS = 50_000
ROUNDS = 5
# Of the time of the api-server's process, which all its requests share.
MOST_OF_BEFORE = 0.25


@pytest.fixture(scope="module")
def pages(postgres: EmbeddedPostgres, template: str, release: str) -> Iterator[Pages]:
    scale = Scale(release, 2_000, days=1, rounds=1)
    pages = make_site(postgres, template, scale, scale.tasks)
    with psycopg.connect(**pages.conninfo) as connection:
        connection.execute(
            "TRUNCATE horsies_tasks, horsies_task_history, airflow_horsies.submissions, airflow_horsies.attempts,"
            " airflow_horsies.logs, airflow_horsies.progress, horsies_worker_states CASCADE"
        )
        fill(connection, tasks=60_000, days=1, keeps_history=keeps_history(release), batch_items=ITEMS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(instance_routes, "read_tries", lambda *_: [])
        patch.setattr(instance_routes, "page_client", pages.client)
        yield pages
    postgres.drop_database(pages.database)


def poll(pages: Pages) -> tuple[int, dict[str, int]]:
    shown = answer(instance_routes.read_instance(BATCH, NO_SESSION, RIGHTS))
    return shown["positions"], shown["counts"]


def poll_item_by_item(pages: Pages) -> tuple[int, dict[str, int]]:
    with pages.client() as client:
        latest = {each.position: each for each in client.read_submissions(BATCH)}
        states = client.read_states([each.horsies_task_id for each in latest.values()])
    return len(latest), dict(Counter(str(states[each.horsies_task_id]) for each in latest.values()))


def page(pages: Pages) -> list[int]:
    shown = answer(instance_routes.read_items(BATCH, Sort.DURATION, descending=True))
    return [each["position"] for each in shown["items"]]


def page_item_by_item(pages: Pages) -> list[int]:
    with pages.client() as client:
        latest = {each.position: each for each in client.read_submissions(BATCH)}
        ids = [each.horsies_task_id for each in latest.values()]
        wire = Wire(client.schema)
        tasks = client.run(lambda: read_tasks(wire, ids, whole=False))
    items = [
        instance_routes._item(
            PlacedItem(
                place=each.position, life=each.life, round=each.round, task_id=each.horsies_task_id, number=None
            ),
            tasks.get(each.horsies_task_id),
        )
        for each in latest.values()
    ]
    items.sort(key=lambda each: (each.duration, each.position), reverse=True)
    return [each.position for each in items[:50]]


def cost(call: Callable[[Pages], Any], pages: Pages) -> tuple[float, float]:
    """Seconds on the clock, and those of this process."""
    began, began_process = time.perf_counter(), time.process_time()
    call(pages)
    return time.perf_counter() - began, time.process_time() - began_process


@pytest.mark.parametrize(
    ("now", "before"), [(poll, poll_item_by_item), (page, page_item_by_item)], ids=["poll", "page"]
)
def test_a_very_large_batch_is_counted_and_paged_by_the_database(
    pages: Pages, now: Callable[[Pages], Any], before: Callable[[Pages], Any]
) -> None:
    assert now(pages) == before(pages)
    costs = [(cost(now, pages), cost(before, pages)) for _ in range(ROUNDS)]
    clock, process = (
        statistics.median(new[which] for new, _ in costs) / statistics.median(old[which] for _, old in costs)
        for which in (0, 1)
    )
    (now_clock, now_process), (old_clock, old_process) = costs[-1]
    print(
        f"\n{now.__name__} of {ITEMS:,} items: x{process:.3f} of the process, x{clock:.3f} on the clock "
        f"({now_process:.3f} s and {now_clock:.3f} s; item by item {old_process:.3f} s and {old_clock:.3f} s)"
    )
    assert process <= MOST_OF_BEFORE
