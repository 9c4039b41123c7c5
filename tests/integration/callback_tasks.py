"""Tasks that hand out the address of a callback, and are careless with it."""

from __future__ import annotations

import logging
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

from airflow_horsies.worker import horsies_app, progress, python_task

app = horsies_app(dead_after=timedelta(seconds=5))
log = logging.getLogger("outside")


def hand_out(place: str, url: str) -> None:
    """As complete as an outside party sees it."""
    Path(f"{place}.new").write_text(url)
    Path(f"{place}.new").rename(place)


@python_task(app, "ask")
def ask(*, url: str, place: str) -> dict[str, list[str]]:
    hand_out(place, url)
    print("asked to answer at", url)
    print("asked to answer at", url, file=sys.stderr)
    log.warning("The address is %s", url)
    progress(1, 2, url)
    time.sleep(1)
    return {url: [url]}


@python_task(app, "ask_and_fail")
def ask_and_fail(*, url: str, place: str) -> None:
    hand_out(place, url)
    try:
        raise OSError(f"no route to {url}")
    except OSError as error:
        raise RuntimeError(f"cannot ask at {url}") from error


@python_task(app, "ask_and_die")
def ask_and_die(*, url: str, place: str) -> None:
    if not Path(place).exists():
        hand_out(place, url)
        os._exit(9)
    hand_out(f"{place}.again", url)


@python_task(app, "misunderstand")
def misunderstand(*, url: int, place: str) -> None:
    raise AssertionError("not reached")
