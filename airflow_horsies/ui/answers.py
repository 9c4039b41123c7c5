"""What the routes answer: JSON, problems, and words of tasks made fit to be shown."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from airflow.sdk.log import redact  # type: ignore[attr-defined]
from fastapi import Response

MAX_TEXT_CHARS = 4_000
MAX_VALUE_CHARS = 100_000
# Deeper than anything a person nests; the masker stops at 5 by itself.
MASK_DEPTH = 50


def shown_text(text: Any, *, max_chars: int = MAX_TEXT_CHARS) -> str | None:
    """What a task said, without the secrets this process knows and no longer than a page can show."""
    if text is None:
        return None
    # Masked before it is cut: half a secret would not be found.
    masked = str(redact(str(text)))
    return masked if len(masked) <= max_chars else f"{masked[: max_chars - 1]}…"


def shown_value(value: Any) -> str:
    """Arguments or a result, as JSON for people; what is named like a secret is masked, at whatever depth."""
    text = json.dumps(redact(value, max_depth=MASK_DEPTH), indent=2, ensure_ascii=False, default=str)
    return shown_text(text, max_chars=MAX_VALUE_CHARS) or ""


def json_answer(
    content: Any, *, status: int = 200, media_type: str = "application/json", headers: Any = None
) -> Response:
    # All in ASCII: a task's error may hold half a surrogate pair, which has no UTF-8.
    return Response(json.dumps(content), status_code=status, media_type=media_type, headers=headers)


def problem(status: int, detail: str, *, headers: Any = None) -> Response:
    """RFC 9457."""
    content = {"status": int(status), "title": HTTPStatus(status).phrase, "detail": detail}
    return json_answer(content, status=int(status), media_type="application/problem+json", headers=headers)
