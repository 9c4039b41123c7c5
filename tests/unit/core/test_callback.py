from __future__ import annotations

import base64
import hashlib
from datetime import timedelta
from typing import Any

import pytest

from airflow_horsies.core.callback import (
    CALLBACK_URL,
    MAX_ANSWER_NESTING,
    CallbackTerms,
    callback_url,
    digest_answer,
    digest_token,
    fill_callbacks,
    find_callbacks,
    mint_token,
    name_callback,
    parse_answer,
    require_placeholder,
    without_tokens,
)
from airflow_horsies.core.masking import mask_text, mask_tokens, mask_value
from airflow_horsies.exceptions import InvalidTask

ID = "01990000-0000-7000-8000-000000000000"


def test_a_token_has_256_random_bits_and_is_recognised_anywhere() -> None:
    tokens = {mint_token() for _ in range(1_000)}
    assert len(tokens) == 1_000
    for token in tokens:
        assert len(base64.urlsafe_b64decode(f"{token.removeprefix('hcb_')}=")) == 32
        for text in (
            token,
            f"see {token}.",
            f'"{token}"',
            f"http://a/b/{token}/fail",
            f"x{token}",
            f"{token}\n{token}",
        ):
            assert token not in mask_text(text)
            assert "hcb_***" in mask_tokens(text)
        assert mask_value({"a": [token]}) == {"a": ["hcb_***"]}
        assert digest_token(token) == hashlib.sha256(token.encode()).digest()


def test_other_text_stays_as_it_is() -> None:
    for text in ("hcb_", "hcb_short", "the prefix hcb_ alone", "callback"):
        assert mask_tokens(text) == text


def test_the_address_is_filled_in_where_the_id_stands() -> None:
    token = mint_token()
    url = callback_url("https://a.example.com/team/", token)
    assert url == f"https://a.example.com/team/horsies/callbacks/{token}"
    named = name_callback(f'{{"url":"{CALLBACK_URL}"}}', ID)
    assert named == f'{{"url":"horsies-callback:{ID}"}}'
    given = {
        "url": f"horsies-callback:{ID}",
        "text": f"at horsies-callback:{ID}, please",
        "n": 1,
        "deep": [CALLBACK_URL],
    }
    assert find_callbacks(given) == {ID}
    filled = fill_callbacks(given, {ID: url})
    assert filled == {"url": url, "text": f"at {url}, please", "n": 1, "deep": [CALLBACK_URL]}
    assert without_tokens({"a": [f"x {url}"], url: 1}, [token]) == {
        "a": ["x https://a.example.com/team/horsies/callbacks/hcb_***"],
        "https://a.example.com/team/horsies/callbacks/hcb_***": 1,
    }


@pytest.mark.parametrize(
    "kwargs", [{}, {"a": 1}, {"a": ["horsies-callback:none"]}, {"a": f"horsies-callback:{ID[:-1]}"}]
)
def test_plain_arguments_have_no_callback(kwargs: dict[str, Any]) -> None:
    assert find_callbacks(kwargs) == set()
    with pytest.raises(InvalidTask, match="contain no CALLBACK_URL"):
        require_placeholder(kwargs)


@pytest.mark.parametrize(
    ("terms", "problem"),
    [
        ({"expires_after": timedelta(0)}, "from one second"),
        ({"expires_after": timedelta(days=366)}, "to 365 days"),
        ({"expires_after": 5}, "must be a timedelta"),
        ({"max_duration": timedelta(hours=1)}, "at least expires_after"),
    ],
)
def test_terms_that_make_no_sense_are_refused(terms: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidTask, match=problem):
        CallbackTerms(**terms)


def test_without_a_maximum_heartbeats_extend_nothing() -> None:
    assert CallbackTerms(expires_after=timedelta(hours=2)).longest == timedelta(hours=2)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"{} {}",
        b"\xff",
        b"\xef\xbb\xbf{}",
        b"NaN",
        b"[-Infinity]",
        b"1e999",
        b"-1e999",
        b'"\\u0000"',
        b'{"a\\u0000": 1}',
        b'["\\ud800"]',
        b'{"__classname__": "x"}',
        b'[{"__type": "x"}]',
        b"[" * (MAX_ANSWER_NESTING + 1) + b"]" * (MAX_ANSWER_NESTING + 1),
        b'{"a":' * (MAX_ANSWER_NESTING + 1) + b"1" + b"}" * (MAX_ANSWER_NESTING + 1),
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"9" * 5_000,
        b"'a'",
        b"\x00",
    ],
)
def test_what_cannot_be_the_value_of_a_task_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        parse_answer(body)


@pytest.mark.parametrize(
    "body", [b"null", b"1", b'{"a": [1.5, "\xc3\xa9", true]}', b'"\\ud83d\\ude00"', b"[" * 100 + b"]" * 100]
)
def test_any_other_json_is_an_answer_as_it_came(body: bytes) -> None:
    assert parse_answer(body) == body.decode()


def test_no_body_is_null() -> None:
    assert parse_answer(b"") == "null"


def test_the_digest_is_that_of_the_value() -> None:
    assert digest_answer('{"a":1,"b":"\\u00e9"}') == digest_answer('{ "b": "é",\n"a": 1 }')
    assert len({digest_answer(text) for text in ("1", "1.0", '"1"', "true", "[1]", "null")}) == 6


def test_an_answer_may_be_nested_up_to_the_limit() -> None:
    text = "[" * MAX_ANSWER_NESTING + "1" + "]" * MAX_ANSWER_NESTING
    assert parse_answer(text.encode()) == text
