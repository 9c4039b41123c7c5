from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path

import pytest

pytest.importorskip("horsies")

from airflow_horsies.worker import __main__ as command
from airflow_horsies.worker.__main__ import with_defaults


def test_one_child_that_is_kept_is_the_default() -> None:
    arguments = with_defaults(["my_tasks:app"])
    assert arguments[0] == "worker"
    assert "my_tasks:app" in arguments
    assert arguments[arguments.index("--processes") + 1] == "1"
    assert int(arguments[arguments.index("--max-tasks-per-child") + 1]) >= 1_000_000


@pytest.mark.parametrize("given", [["--processes", "3"], ["--processes=3"]])
def test_a_given_option_wins_over_its_default(given: list[str]) -> None:
    arguments = with_defaults(["my_tasks:app", *given])
    last = [argument for argument in arguments if argument.startswith("--processes")][-1]
    assert last == given[0]
    assert "--max-tasks-per-child" in arguments


def test_other_options_are_handed_on() -> None:
    given = ["-m", "my_tasks:app", "--loglevel", "DEBUG"]
    arguments = with_defaults(given)
    position = arguments.index("-m")
    assert arguments[position : position + len(given)] == given


def test_horsies_own_command_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr("horsies.core.cli.main", lambda: seen.append(sys.argv))
    monkeypatch.setattr(sys, "argv", ["-m", "my_tasks:app"])
    command.main()
    assert [argv[0] for argv in seen] == ["horsies"]
    assert seen[0][1:] == with_defaults(["my_tasks:app"])


@pytest.mark.parametrize(
    ("given", "understood"),
    [
        ([], (1, 1_000_000)),
        (["--processes", "3"], (3, 1_000_000)),
        (["--processes=3", "--max-tasks-per-child", "50"], (3, 50)),
        (["--proc", "3"], (3, 1_000_000)),
    ],
    ids=["nothing", "one", "both", "abbreviated"],
)
def test_horsies_understands_the_defaults_and_what_is_given_instead(
    given: list[str], understood: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from horsies.core import cli

    seen: list[tuple[str, int, int]] = []

    def start(args: object) -> None:
        seen.append((args.module_pos, args.processes, args.max_tasks_per_child))  # type: ignore[attr-defined]

    monkeypatch.setattr(cli, "worker_command", start)
    monkeypatch.setattr(sys, "argv", ["x", "my_tasks:app", *given])
    command.main()
    assert seen == [("my_tasks:app", *understood)]


PYTHON_ONLY = """
from airflow_horsies.worker import horsies_app, python_task
app = horsies_app("postgresql+psycopg://db/horsies")
@python_task(app, "plain")
def plain() -> None: ...
"""
WITH_SPARK = (
    PYTHON_ONLY
    + """
from airflow_horsies.worker import spark_task
@spark_task(app, "sparkling")
def sparkling(spark) -> None: ...
"""
)


@pytest.mark.parametrize(
    ("source", "given", "processes"),
    [
        (PYTHON_ONLY, [], 3),
        (PYTHON_ONLY, ["--processes", "2"], 2),
        (PYTHON_ONLY, ["--proc=2"], 2),
        (PYTHON_ONLY, ["--processes", "1"], 1),
        (WITH_SPARK, [], 1),
        (WITH_SPARK, ["--processes", "2"], 2),
        ("raise RuntimeError", [], 1),
    ],
    ids=["python", "given", "abbreviated", "one", "spark", "spark given", "broken"],
)
def test_a_worker_without_spark_has_a_child_for_each_core_unless_told_otherwise(
    source: str, given: list[str], processes: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from horsies.core import cli

    name = f"tasks_{uuid.uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    seen: list[int] = []
    monkeypatch.setattr(cli, "worker_command", lambda args: seen.append(args.processes))
    monkeypatch.setattr(sys, "argv", ["x", *given, f"{name}:app"])
    command.main()
    assert seen == [processes]
