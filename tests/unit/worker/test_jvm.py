from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("horsies")

from airflow_horsies.worker import jvm
from airflow_horsies.worker.jvm import FOLDER_PREFIX, remove_folders_of_the_dead

# More than Linux gives to any process.
NOBODYS_PID = 2**22 + 1


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    for name in (f"{FOLDER_PREFIX}{os.getpid()}-x", f"{FOLDER_PREFIX}{NOBODYS_PID}-x", f"{FOLDER_PREFIX}x", "other"):
        (tmp_path / name).mkdir()
    return tmp_path


def names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


def test_only_folders_of_children_that_are_gone_are_removed(folders: Path) -> None:
    remove_folders_of_the_dead()
    assert names(folders) == {f"{FOLDER_PREFIX}{os.getpid()}-x", f"{FOLDER_PREFIX}x", "other"}


def test_folders_are_removed_also_where_the_user_has_no_name(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def owner(self: Path, **options: bool) -> str:
        raise KeyError("getpwuid(): uid not found: 1000680000")

    monkeypatch.setattr(Path, "owner", owner)
    remove_folders_of_the_dead()
    assert f"{FOLDER_PREFIX}{NOBODYS_PID}-x" not in names(folders)


def test_folders_of_other_users_stay(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = names(folders)
    other = os.getuid() + 1
    monkeypatch.setattr(jvm.os, "getuid", lambda: other)
    remove_folders_of_the_dead()
    assert names(folders) == before
