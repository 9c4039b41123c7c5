"""The routes for outside parties, which have a token and no login: complete, fail, heartbeat.

Nothing is told to those who have no token. An unknown, a malformed and no token at all take the same way through the
code, with the same question to the database.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any, assert_never

from airflow.providers.common.compat.sdk import AirflowNotFoundException
from fastapi import APIRouter, HTTPException, Request, Response
from starlette.requests import ClientDisconnect

from airflow_horsies.client.callbacks import Told, Verdict, answer_callback, extend_callback
from airflow_horsies.core.callback import MAX_BODY_BYTES, NOT_AN_ANSWER, CallbackState, parse_answer
from airflow_horsies.exceptions import HorsiesError
from airflow_horsies.ui.access import BY_TOKEN, client_of, unknown_callback
from airflow_horsies.ui.clients import page_client
from airflow_horsies.ui.limiting import limiter
from airflow_horsies.ui.threads import run_in_thread

# Those of the pages stay free, whatever comes from outside.
THREADS = ThreadPoolExecutor(4, thread_name_prefix="airflow-horsies-callbacks")
# For the whole request to the database.
DATABASE_SECONDS = 5
BODY_SECONDS = 10.0
RETRY_AFTER_SECONDS = 5
CLOSE = {"connection": "close"}

log = logging.getLogger(__name__)
router = APIRouter()


@router.post("/callbacks/{token}", dependencies=BY_TOKEN)
async def complete(token: str, request: Request) -> Response:
    """Complete the task instance; the body becomes its value."""
    return await _answer(token, request, CallbackState.COMPLETED)


@router.post("/callbacks/{token}/fail", dependencies=BY_TOKEN)
async def fail(token: str, request: Request) -> Response:
    """Fail the task instance."""
    return await _answer(token, request, CallbackState.FAILED)


@router.post("/callbacks/{token}/heartbeat", dependencies=BY_TOKEN)
async def heartbeat(token: str, request: Request) -> Response:
    """Be given more time."""
    await _read_body(request)

    def extend() -> Told:
        with page_client(seconds=DATABASE_SECONDS) as client:
            return extend_callback(client, token)

    return _told(await _ask(extend))


async def _answer(token: str, request: Request, state: CallbackState) -> Response:
    body, sender = await _read_body(request), client_of(request)

    def answer() -> Told:
        text = _parsed(body)
        with page_client(seconds=DATABASE_SECONDS) as client:
            return answer_callback(client, token, state, text, answered_from=sender)

    return _told(await _ask(answer))


async def _ask(call: Callable[[], Told]) -> Told:
    try:
        return await run_in_thread(call, THREADS)
    except (HorsiesError, AirflowNotFoundException) as error:
        # Others than users of Airflow are not told what is wrong with its database.
        log.warning("An answer to a callback cannot be stored: %s: %s", type(error).__name__, error)
        raise HTTPException(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "The answer cannot be stored now. Try again later.",
            headers={"retry-after": str(RETRY_AFTER_SECONDS)},
        ) from None


def _parsed(body: bytes) -> str:
    try:
        return parse_answer(body)
    except ValueError:
        # The message of the parser repeats what was sent.
        raise HTTPException(HTTPStatus.BAD_REQUEST, NOT_AN_ANSWER) from None


async def _read_body(request: Request) -> bytes:
    """The body, which is measured while it arrives: its length in the header may be wrong, or missing."""
    with limiter.opened(client_of(request)) as is_open:
        if not is_open:
            raise HTTPException(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "Too many requests are open. Try again later.",
                headers={"retry-after": "1", **CLOSE},
            )
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _collect(request)
        except TimeoutError:
            raise HTTPException(
                HTTPStatus.REQUEST_TIMEOUT, "The body did not arrive in time. Send it again.", headers=CLOSE
            ) from None
        except ClientDisconnect:
            raise HTTPException(HTTPStatus.BAD_REQUEST, "The body is incomplete. Send it again.") from None
    _require_json(request, is_empty=not body)
    return body


async def _collect(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"The body has more than {MAX_BODY_BYTES:,} bytes. Send less.",
                headers=CLOSE,
            )
    return bytes(body)


def _require_json(request: Request, *, is_empty: bool) -> None:
    """A form, which any page can make a browser send, is refused, and so is what would have to be unpacked."""
    encodings = [value.strip().lower() for value in request.headers.getlist("content-encoding")]
    types = request.headers.getlist("content-type")
    if any(encoding not in ("", "identity") for encoding in encodings) or (
        not (is_empty and not types) and [_is_json(value) for value in types] != [True]
    ):
        raise HTTPException(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "The body must be JSON in UTF-8 without compression. Set the content type application/json.",
        )


def _is_json(content_type: str) -> bool:
    kind, *parameters = (part.strip().lower() for part in content_type.split(";"))
    return kind == "application/json" and all(part in ("", "charset=utf-8", 'charset="utf-8"') for part in parameters)


def _told(told: Told) -> Response:
    match told.verdict:
        case Verdict.ACCEPTED | Verdict.REPEATED:
            answer: dict[str, Any] = {"status": told.verdict.name.lower()}
            if told.expires_at is not None:
                answer["expires_at"] = told.expires_at.isoformat()
            return Response(json.dumps(answer), media_type="application/json")
        case Verdict.REFUSED:
            raise HTTPException(
                HTTPStatus.CONFLICT, "This callback has been answered otherwise. The first answer counts."
            )
        case Verdict.OVER:
            raise HTTPException(HTTPStatus.GONE, "This callback has expired, or nobody waits for it any more.")
        case Verdict.UNKNOWN:
            raise unknown_callback()
        case _:
            assert_never(told.verdict)
