from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_horsies.embedded.errors import EmbeddedError
from airflow_horsies.embedded.folder_lock import FolderLock


def test_a_folder_in_use_names_the_process_that_uses_it(tmp_path: Path) -> None:
    first, second = FolderLock(tmp_path / "lock"), FolderLock(tmp_path / "lock")
    first.acquire()
    try:
        with pytest.raises(EmbeddedError, match=f"in use by process {os.getpid()}"):
            second.acquire()
    finally:
        first.release()
    second.acquire()
    second.release()
