"""The responses of the routes: JSON, problems, and masked text of tasks."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from airflow.providers.common.compat.sdk import conf
from airflow.sdk.log import redact  # type: ignore[attr-defined]
from fastapi import Response

from airflow_horsies.core.documentation import explain_error
from airflow_horsies.core.masking import mask_text, mask_value
from airflow_horsies.core.values import to_plain
from airflow_horsies.ui.payloads import Answer, Problem

MAX_TEXT_CHARS = 4_000
MAX_VALUE_CHARS = 100_000
# Deeper than real data; the masker's default is 5.
MASK_DEPTH = 50


def shown_text(text: Any, *, max_chars: int = MAX_TEXT_CHARS) -> str | None:
    """Text of a task, cut to what a page can show, without secrets that this process knows or that look like one."""
    if text is None:
        return None
    # Masked before it is cut: a cut secret would not be recognised.
    return _cut(mask_text(str(redact(str(text)))), max_chars)


def shown_value(value: Any) -> str:
    """Arguments or a result as readable JSON. Values that are named or look like a secret are masked at any depth."""
    text = json.dumps(masked_value(value), indent=2, ensure_ascii=False, default=str)
    return _cut(str(redact(text)), MAX_VALUE_CHARS)


def error_url(code: str | None) -> str | None:
    """The address of the page that explains an error code."""
    return explain_error(conf.get("horsies", "docs_url", fallback=""), code)


def masked_value(value: Any) -> Any:
    return mask_value(redact(value, max_depth=MASK_DEPTH))


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"


def json_answer(
    content: Answer, *, status: int = 200, media_type: str = "application/json", headers: Any = None
) -> Response:
    # In ASCII: a task's error may contain half a surrogate pair, which has no UTF-8.
    return Response(json.dumps(to_plain(content)), status_code=status, media_type=media_type, headers=headers)


def problem(status: int, detail: str, *, headers: Any = None) -> Response:
    content = Problem(status=int(status), title=HTTPStatus(status).phrase, detail=detail)
    return json_answer(content, status=int(status), media_type="application/problem+json", headers=headers)
