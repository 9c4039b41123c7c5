from __future__ import annotations

import uuid
from typing import Any

import pytest

from airflow_horsies.core.validation import require_task_id
from airflow_horsies.models import TaskSpec


def spec(**given: Any) -> TaskSpec:
    return TaskSpec(**{"task_name": "add", **given})


@pytest.mark.parametrize(
    "text", ["0198A0DE-0000-7000-8000-000000000001", "{0198a0de00007000800000000000000" + "1}", uuid.UUID(int=1)]
)
def test_task_id_becomes_canonical_text(text: object) -> None:
    assert require_task_id(text) == str(uuid.UUID(str(text)))
    assert spec(task_id=text).task_id == require_task_id(text)
