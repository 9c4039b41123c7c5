"""Light task instances record what Airflow records: at a retry, a clear, a new run, and an edit of their code."""

from __future__ import annotations

from random import Random

import pytest

from tests.chaos.played import DEFERRED, EDITS, RESTARTING, Code, Life, Light, new_item


@pytest.fixture
def light() -> Light:
    code = Code((new_item("a"), new_item("b"), new_item("c")), retries=2)
    made = Light(1, "batch", "first", "direct", code)
    made.begin_try()
    return made


def test_retry_raises_the_number_of_the_try_alone(light: Light) -> None:
    before = light.life
    light.retry()
    assert (light.try_number, light.life) == (2, before)


def test_edit_of_retries_changes_nothing_that_is_stored(light: Light) -> None:
    before = light.life
    light.edit("retries", Random(1))
    assert light.code.retries != 2
    assert light.life == before


def test_clear_of_a_deferred_one_sets_max_tries_by_the_code(light: Light) -> None:
    light.retry()
    light.defer({})
    assert light.state == DEFERRED
    light.clear()
    assert (light.state, light.life, light.try_number) == (None, Life(1, 1, 2 + 2), 3)


def test_clear_of_a_running_one_raises_the_clear_number_alone(light: Light) -> None:
    light.clear()
    assert (light.state, light.life, light.try_number) == (RESTARTING, Life(1, 1, 2), 2)


def test_clear_of_one_that_ended_starts_its_run_again(light: Light) -> None:
    light.succeed([])
    began = light.began
    light.clear()
    assert light.began > began
    assert not light.is_over


def test_clear_of_another_task_leaves_this_one_running(light: Light) -> None:
    light.clear_another()
    assert (light.state, light.clear_number, light.max_tries, light.try_number) == ("running", 1, 2, 1)


def test_run_made_again_begins_anew(light: Light) -> None:
    light.clear()
    began = light.began
    light.remake()
    assert (light.exists, light.state, light.life, light.try_number) == (False, None, Life(2, 0, 2), 1)
    assert light.began > began


def test_run_queued_again_has_another_start_alone(light: Light) -> None:
    before, began = light.life, light.began
    light.queue_again()
    assert light.began > began
    assert light.life == before


def test_value_belongs_to_the_try_that_deferred(light: Light) -> None:
    asked, life = light.code.items, light.life
    light.defer({})
    light.edit("order", Random(3))
    light.clear_another()
    light.succeed(["some"])
    value, tried = light.values[life]
    assert (value, tried.items) == (["some"], asked)


@pytest.mark.parametrize("how", EDITS)
def test_every_edit_changes_the_code_of_some_seed(light: Light, how: str) -> None:
    assert any(EDITS[how](light.code, Random(seed)) != light.code for seed in range(10))


@pytest.fixture
def chunked() -> Light:
    made = Light(1, "chunked", "first", "direct", Code((new_item("a"), new_item("b")), chunk_size=2))
    made.begin_try()
    made.defer({})
    return made


def test_repair_is_a_clear_after_a_request_that_was_recorded(chunked: Light) -> None:
    before = chunked.life
    chunked.ask_for_repair([1])
    assert chunked.is_being_repaired and not chunked.can_change
    assert chunked.end_request(requested=True)
    chunked.clear_for_repair()
    assert chunked.life != before
    assert (chunked.repaired, chunked.unsure) == ({chunked.life}, set())


def test_request_that_nobody_was_told_of_is_made_again_and_leaves_doubt_until_then(chunked: Light) -> None:
    chunked.ask_for_repair(None)
    assert not chunked.end_request(requested=None)
    assert chunked.repair_due is not None
    chunked.repair_due = None
    assert not chunked.end_request(requested=False)
    chunked.clear()
    assert chunked.unsure == {chunked.life}


@pytest.mark.parametrize("how", ["marked", "cleared since", "of another life", "not chunked", "without items"])
def test_only_a_batch_whose_life_has_submitted_is_repaired(chunked: Light, how: str) -> None:
    assert chunked.can_be_repaired
    match how:
        case "marked":
            chunked.mark("success")
        case "cleared since":
            chunked.clear()
        case "of another life":
            chunked.clear_another()
        case "not chunked":
            chunked.mode = "batch"
        case "without items":
            chunked.code = Code(())
    assert not chunked.can_be_repaired
