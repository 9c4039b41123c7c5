from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from airflow_horsies.core import catalog
from airflow_horsies.core.catalog import (
    KnownKind,
    KnownTask,
    Request,
    Spoken,
    find_refused,
    make_refusal,
    mark_disputed,
)
from airflow_horsies.exceptions import TaskRefused

PATH = {
    "type": "object",
    "properties": {"path": {"type": "string"}},
    "required": ["path"],
    "additionalProperties": False,
}
PLACE = {**PATH, "properties": {"place": {"type": "string"}}, "required": ["place"]}
SPOKEN = Spoken(frozenset({"default"}), {("default", "count"): [PATH, PLACE]})


def request(name: str = "count", queue: str = "default", **given: Any) -> Request:
    return Request(queue, name, json.dumps(given) if given else None)


def known(**changed: Any) -> KnownTask:
    values: dict[str, Any] = {
        "kind": KnownKind.TASK,
        "name": "count",
        "parameters": PATH,
        "doc": None,
        "queue": None,
        "served_queues": ("default",),
        "workers": 1,
        "releases": ("1",),
        "hosts": ("here",),
        "seen_at": datetime(2026, 1, 1, tzinfo=UTC),
        "is_live": True,
    }
    return KnownTask(**{**values, **changed})


def test_one_worker_that_accepts_is_enough() -> None:
    assert find_refused([request(path="x"), request(place="x")], SPOKEN) is None
    wrong = request(path="x", place="y")
    assert find_refused([request(path="x"), wrong], SPOKEN) is wrong
    assert find_refused([request()], SPOKEN) is not None


def test_only_queues_of_workers_that_have_spoken_are_checked() -> None:
    assert find_refused([request("other")], SPOKEN) is not None
    for accepted in (request("other", queue="quiet"), request("airflow_horsies.begin")):
        assert find_refused([accepted], SPOKEN) is None
    assert find_refused([request("other")], Spoken()) is None


def test_the_items_of_a_chunk_are_checked_up_to_a_bound(monkeypatch: Any) -> None:
    items = [{"path": "x"}, {"path": "y"}, {"path": 7}]
    chunk = request("count[]", items=items)
    assert find_refused([chunk], SPOKEN) is chunk
    refusal = make_refusal(chunk, [PATH], ["count"])
    assert "item 2: path must be a text" in str(refusal)
    monkeypatch.setattr(catalog, "MAX_CHECKED_ITEMS", 2)
    assert find_refused([chunk], SPOKEN) is None
    monkeypatch.setattr(catalog, "MAX_CHECKED_ITEMS", 10)
    monkeypatch.setattr(catalog, "MAX_CHECKED_BYTES", 10)
    assert find_refused([chunk], SPOKEN) is None
    assert find_refused([request("cuont[]", items=items)], SPOKEN) is not None


def test_a_refusal_names_what_is_wrong_and_what_is_known() -> None:
    unknown = make_refusal(request("cuont"), [], ["count", "load", "airflow_horsies.begin"])
    assert isinstance(unknown, TaskRefused)
    assert str(unknown) == (
        "task_name: no live worker of queue 'default' knows the task 'cuont' (did you mean count?). They know count, "
        "load. Nothing was sent. Correct the name or the queue, or restart the workers with the module that defines it."
    )
    many = make_refusal(request("x"), [], [f"task{number:02}" for number in range(25)])
    assert "task19 and 5 more" in str(many)
    assert "They know no tasks" in str(make_refusal(request("x"), [], []))
    wrong = make_refusal(request(path=7), [PATH], ["count"])
    assert wrong.field == "kwargs"
    assert "path must be a text" in str(wrong)
    assert "The parameters are (path: string)" in str(wrong)


def test_live_workers_may_disagree() -> None:
    entries = [
        known(),
        known(parameters=PLACE),
        known(name="load"),
        known(name="load", parameters=PLACE, is_live=False),
        known(kind=KnownKind.WORKFLOW, parameters=PLACE),
    ]
    assert [entry.is_disputed for entry in mark_disputed(entries)] == [True, True, False, False, False]
    assert known().signature == "path: string"
