from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.bases.xcom import BaseXCom
from airflow.serialization import serialized_objects

from airflow_horsies.links import HorsiesAttemptsLink

LINK = HorsiesAttemptsLink()
# Newer releases of Airflow have another name for it.
DAG_SERIALIZER: Any = getattr(serialized_objects, "DagSerialization", None) or serialized_objects.SerializedDAG


@dataclass
class Instance:
    """As Airflow hands it over: its own key, or the running task instance."""

    dag_id: str = "sales"
    run_id: str = "manual__1"
    task_id: str = "load"
    map_index: int | None = -1
    task: Any = None


class Linked(BaseOperator):
    operator_extra_links = (HorsiesAttemptsLink(),)


def link(**changed: Any) -> str:
    return LINK.get_link(None, ti_key=Instance(**changed))


@pytest.mark.parametrize(
    "base_url, path",
    [
        ("http://airflow.test:8080", ""),
        ("http://airflow.test:8080/", ""),
        ("https://airflow.test/airflow", "/airflow"),
        ("https://airflow.test/team/airflow/", "/team/airflow"),
        ("https://airflow.test/with%20space", "/with%20space"),
        ("/airflow", "/airflow"),
        ("", ""),
    ],
)
def test_link_begins_with_the_path_of_airflow(monkeypatch: pytest.MonkeyPatch, base_url: str, path: str) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", base_url)
    assert link() == f"{path}/horsies/dags/sales/runs/manual__1/tasks/load/-1"


@pytest.mark.parametrize(
    "given, encoded",
    [
        ("scheduled__2026-01-02T03:04:05+00:00", "scheduled__2026-01-02T03%3A04%3A05%2B00%3A00"),
        ("with space", "with%20space"),
        ("a/b", "a%2Fb"),
        ("100%41", "100%2541"),
        ("a?b#c&d", "a%3Fb%23c%26d"),
        ("läuft_日本", "l%C3%A4uft_%E6%97%A5%E6%9C%AC"),
    ],
)
def test_link_encodes_every_segment(given: str, encoded: str) -> None:
    assert (
        link(dag_id=given, run_id=given, task_id=given) == f"/horsies/dags/{encoded}/runs/{encoded}/tasks/{encoded}/-1"
    )


def test_link_names_the_mapped_instance() -> None:
    assert link(map_index=7).endswith("/tasks/load/7")
    assert link(map_index=None).endswith("/tasks/load/-1")


def test_airflow_stores_name_and_xcom_key_of_the_link() -> None:
    with DAG("linked", schedule=None) as dag:
        Linked(task_id="plain")
        Linked.partial(task_id="mapped").expand(doc_md=["a", "b"])
    stored = DAG_SERIALIZER.from_dict(DAG_SERIALIZER.to_dict(dag))
    for task_id in ("plain", "mapped"):
        (held,) = stored.get_task(task_id).operator_extra_link_dict.values()
        # In the databases of those who use it: a change makes the links of earlier runs vanish.
        assert (held.name, held.xcom_key) == ("Horsies attempts", "_link_HorsiesAttemptsLink")


def test_push_stores_the_link_past_a_custom_xcom_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[dict[str, Any]] = []
    monkeypatch.setattr(BaseXCom, "set", lambda **given: stored.append(given))
    LINK.push({"ti": Instance(map_index=3)})
    LINK.push({"ti": Instance(map_index=None)})
    expected = {"key": LINK.xcom_key, "dag_id": "sales", "task_id": "load", "run_id": "manual__1"}
    assert stored == [
        {**expected, "value": link(map_index=3), "map_index": 3},
        {**expected, "value": link(), "map_index": -1},
    ]


def test_push_that_fails_does_not_fail_the_task(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(**_: Any) -> None:
        raise RuntimeError("the api-server is gone")

    monkeypatch.setattr(BaseXCom, "set", refuse)
    LINK.push({"ti": Instance()})
    assert "could not be stored" in caplog.text
