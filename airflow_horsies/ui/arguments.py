"""The arguments of a task as they may be shown: those it was sent with, masked as Airflow masks what it renders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_horsies.masking import MASK
from airflow_horsies.models import Submission


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A templated field as Airflow keeps it of the newest try of a task instance."""

    kwargs: Any
    try_number: int | None


def shown_arguments(sent: Mapping[str, Any] | None, rendered: Rendered, submission: Submission) -> Any:
    """None where nobody knows them any more.

    :param sent: what horsies keeps.
    """
    if sent is not None:
        return masked_alike(sent, rendered.kwargs)
    # Another try may have rendered other arguments than those of the task that ran.
    return rendered.kwargs if rendered.try_number == submission.try_number else None


def masked_alike(sent: Any, rendered: Any) -> Any:
    """What was sent, masked wherever Airflow masks what it rendered in the same place.

    Both differ where the task instance was rendered anew since, with other arguments.
    """
    match sent, rendered:
        case Mapping(), Mapping():
            return {name: masked_alike(value, rendered.get(name)) for name, value in sent.items()}
        case list(), list() | tuple():
            others = [*rendered, *[None] * len(sent)]
            return [masked_alike(value, other) for value, other in zip(sent, others, strict=False)]
        case _, str() if MASK in rendered:
            return rendered if _fits(str(sent), rendered) else MASK
    return sent


def _fits(text: str, masked: str) -> bool:
    """Whether the masked text can be what became of the other."""
    first, *parts, last = masked.split(MASK)
    if not text.startswith(first):
        return False
    place = len(first)
    for part in parts:
        place = text.find(part, place)
        if place < 0:
            return False
        place += len(part)
    return text.endswith(last) and len(text) - len(last) >= place
