"""The address of a callback: made in the child that runs the task. The database has only a digest of its token."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from airflow_horsies.borrowed.horsies import OperationalErrorCode
from airflow_horsies.client.reporting import WorkerClient
from airflow_horsies.core.callback import (
    callback_url,
    digest_token,
    fill_callbacks,
    find_callbacks,
    mint_token,
    without_tokens,
)
from airflow_horsies.core.masking import mask_tokens
from airflow_horsies.db.connection import Database
from airflow_horsies.exceptions import TRANSIENT_ERRORS, HorsiesError
from airflow_horsies.worker.errors import Failure, TaskFault, describe, short

GIVE_UP_SECONDS = 60.0
RETRY_SECONDS = 1.0

UNHANDLED = OperationalErrorCode.UNHANDLED_EXCEPTION.value
NameFailure = Callable[[BaseException, Failure], Failure]


class Addresses:
    """
    The addresses in the arguments of one attempt.

    :param urls: by the id of the callback.
    """

    def __init__(self, urls: Mapping[str, str]) -> None:
        self._urls = urls
        self._tokens = [url.rpartition("/")[2] for url in urls.values()]

    def fill(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        return fill_callbacks(given, self._urls)

    def hide(self, value: Any) -> Any:
        """A result without the tokens: horsies stores it."""
        return without_tokens(value, self._tokens)

    @contextmanager
    def hidden_in_errors(self, name_failure: NameFailure) -> Iterator[None]:
        """horsies stores the text and the trace of an exception. One with a token is replaced, with the code that it
        would have had."""
        try:
            yield
        except Exception as error:
            if not self._are_in("".join(traceback.format_exception(error))):
                raise
            failure = describe(error)
            if failure.code is None:
                failure = name_failure(error, failure)
            raise TaskFault(failure.code or UNHANDLED, mask_tokens(failure.message)) from None

    def _are_in(self, text: str) -> bool:
        return any(token in text for token in self._tokens)


def mint_addresses(database: Database, task_id: str, given: Mapping[str, Any]) -> Addresses | None:
    """Make a token for each callback in the arguments, and store its digest. None if there is no callback."""
    wanted = find_callbacks(given)
    if not wanted:
        return None
    client = WorkerClient(database)
    try:
        return Addresses({callback_id: _mint(client, task_id, callback_id) for callback_id in wanted})
    finally:
        with suppress(HorsiesError):
            client.close()


def _mint(client: WorkerClient, task_id: str, callback_id: str) -> str:
    token = mint_token()
    gives_up_at = time.monotonic() + GIVE_UP_SECONDS
    while True:
        try:
            base_url = client.mint_callback_token(callback_id, task_id, digest_token(token))
        except TRANSIENT_ERRORS as error:
            if time.monotonic() + RETRY_SECONDS > gives_up_at:
                raise _unavailable(callback_id, error) from None
            time.sleep(RETRY_SECONDS)
        except HorsiesError as error:
            raise _unavailable(callback_id, error) from None
        else:
            break
    if base_url is None:
        raise TaskFault(
            "CALLBACK_CLOSED",
            f"Nobody waits for callback {callback_id} any more: it has been answered, has expired or is void. The task "
            "was not run. Clear the Airflow task to ask again.",
        )
    return callback_url(base_url, token)


def _unavailable(callback_id: str, error: HorsiesError) -> TaskFault:
    return TaskFault("CALLBACK_UNAVAILABLE", short(f"No address could be made for callback {callback_id}: {error}"))
