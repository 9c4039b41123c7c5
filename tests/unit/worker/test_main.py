from __future__ import annotations

import sys

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
    monkeypatch.setattr("airflow_horsies.borrowed.horsies.run_command_line", lambda: seen.append(sys.argv))
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
