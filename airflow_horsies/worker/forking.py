"""Ends copies of a child that the code of a task has forked: a copy must not go on with what the child does next."""

from __future__ import annotations

import os
import traceback


def end_copy(pid: int, error: BaseException | None) -> None:
    """Called when the code of a task has returned or raised. Does nothing in the process that called it.

    :param pid: of that process.
    """
    if os.getpid() == pid:
        return
    # Neither flushes nor locks: other threads of the child may have held its locks when it was forked.
    if error is not None and not isinstance(error, SystemExit):
        os.write(2, "".join(traceback.format_exception(error)).encode("utf-8", "backslashreplace"))
    os._exit(_status_of(error))


def _status_of(error: BaseException | None) -> int:
    """As of a Python process that ends by itself."""
    if error is None:
        return 0
    code = error.code if isinstance(error, SystemExit) else 1
    return code & 0xFF if isinstance(code, int) else int(code is not None)
