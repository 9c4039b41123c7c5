from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_horsies.embedded import __main__ as command_line
from tests.docs.blocks import START_COMMAND


def test_command_of_the_tutorial_starts_its_app_with_its_dags(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(command_line.demo, "start", lambda *args, **options: started.append((args, options)) or 0)
    program, *arguments = START_COMMAND.split(" -m airflow_horsies.embedded ")[1].split()
    assert command_line.main([program, *arguments]) == 0
    assert started == [((Path(".horsies"),), {"app": "hello_tasks:app", "dags_folder": Path("dags")})]
