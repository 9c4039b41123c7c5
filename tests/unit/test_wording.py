from __future__ import annotations

import pytest

from airflow_horsies.models import Progress
from airflow_horsies.wording import describe_progress


@pytest.mark.parametrize(
    ("done", "total", "stage", "told"),
    [
        (4, 10, "stage 3 of 7", "40 % (4 of 10), stage 3 of 7"),
        (999, 1_000, None, "99 % (999 of 1,000)"),
        (1_200, 1_000, None, "100 % (1,200 of 1,000)"),
        (1_200, None, "reading", "1,200 done, reading"),
        (0, 0, None, "0 done"),
    ],
)
def test_progress_is_a_part_of_a_line(done: int, total: int | None, stage: str | None, told: str) -> None:
    assert describe_progress(Progress(attempt=1, done=done, total=total, stage=stage)) == told
