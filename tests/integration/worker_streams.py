"""What holds for the streams of a task, wherever Spark runs."""

from __future__ import annotations

import time
from pathlib import Path

from tests.integration.worker_rig import Rig

# Many times what a stream takes from one file to the next.
QUIET_SECONDS = 3.0


def assert_ends_with_its_task(rig: Rig, folder: Path) -> None:
    rig.ok("watch_stream", folder=str(folder))
    rig.ok("total", day="2026-01-02")
    assert_writes_no_more(folder)


def assert_is_cancelled_with_its_task(rig: Rig, folder: Path) -> None:
    # Most of the time it has no job that could be cancelled.
    task_id = rig.send("watch_stream", folder=str(folder), every="1 minute", seconds=60)
    rig.until(lambda: "the stream writes" in rig.texts(task_id), "the first file")
    rig.hook.cancel_task(task_id)
    rig.until(lambda: any(record.finished_at for record in rig.records(task_id)), "the end of the attempt")
    texts = rig.texts(task_id)
    assert "the stream has ended" in texts, texts


def assert_writes_no_more(folder: Path) -> None:
    before = files_in(folder)
    time.sleep(QUIET_SECONDS)
    assert files_in(folder) == before


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in Path(folder, "files").iterdir())
