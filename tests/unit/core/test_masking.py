from __future__ import annotations

import time

import pytest

from airflow_horsies.core.masking import mask_text, mask_value


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://etl:hunter2@db:5432/sales", "postgresql://etl:***@db:5432/sales"),
        ("no log-in with 'redis://:hunter2@cache/0'", "no log-in with 'redis://:***@cache/0'"),
        ("mysql://a:p@ss/w:rd@host/x", "mysql://a:***@host/x"),
        ("jdbc:postgresql://db/x?user=etl&password=hunter2&ssl=true", None),
        ("DefaultEndpointsProtocol=https;AccountName=a;AccountKey=hunter2==;EndpointSuffix=x", None),
        ("Server=db;Uid=etl;Pwd=hunter2;", "Server=db;Uid=etl;Pwd=***;"),
        ("https://a.blob/x?sv=1&sig=hunter2%3D&se=2", "https://a.blob/x?sv=1&sig=***&se=2"),
        ("spark.hadoop.fs.s3a.secret.key=hunter2", "spark.hadoop.fs.s3a.secret.key=***"),
        ("aws_secret_access_key = hunter2", "aws_secret_access_key = ***"),
        ('{"db_password": "hunter2 and more", "b": 1}', '{"db_password": "***", "b": 1}'),
        ("{'password': 'hunter2'}", "{'password': '***'}"),
        ('"{\\"token\\": \\"hunter2\\"}"', None),
        ("Authorization: Bearer hunter2.hunter2", "Authorization: Bearer ***"),
        ("api_key: hunter2", "api_key: ***"),
    ],
)
def test_secrets_are_masked_by_their_form(text: str, shown: str | None) -> None:
    masked = mask_text(text)
    assert "hunter2" not in masked
    assert "***" in masked
    if shown is not None:
        assert masked == shown
    assert mask_text(masked) == masked


@pytest.mark.parametrize(
    "text",
    [
        "see https://example.org:8080/path and s3://bucket/part=1",
        "12 tokens: 3 of them new; max_tokens=100; token=none",
        "password: ***",
        "the tokenizer=spark and secretary=ann",
        "at 12:30 user@example.org wrote key=1",
        '{"part": 1, "path": "s3://bucket/part"}',
    ],
)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert mask_text(text) == text


def test_every_text_of_a_value_is_masked() -> None:
    value = {"a": ["x://u:hunter2@h", {"x://u:hunter2@h": 1}], "b": 2, "c": None, "d": ("password=hunter2",)}
    assert mask_value(value) == {"a": ["x://u:***@h", {"x://u:***@h": 1}], "b": 2, "c": None, "d": ["password=***"]}


@pytest.mark.parametrize(
    "piece", ["a", "://a:", "password", "password=", "secret.", '"', "password='", "x@", "Bearer "]
)
def test_no_text_takes_long(piece: str) -> None:
    """A pattern that looks at each place again and again would take minutes."""
    text = piece * (100_000 // len(piece))
    began = time.process_time()
    mask_text(text)
    assert time.process_time() - began < 100 * time_of_a_pass(text)


def time_of_a_pass(text: str) -> float:
    began = time.process_time()
    for _ in range(20):
        text.casefold().encode().decode()
    return max(time.process_time() - began, 0.02)
