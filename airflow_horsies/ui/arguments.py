"""The arguments of a task as they may be shown: those it was sent with, as far as Airflow shows them, too.

Airflow masks texts alone: numbers, truth values and the names of arguments are always shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import Any

from airflow_horsies.core.masking import MASK
from airflow_horsies.core.submission import Submission

HIDDEN = "(hidden)"
WHY_HIDDEN = (
    f'Texts that may be secret are "{HIDDEN}": Airflow keeps no rendering of them, or only the beginning of a long one.'
)


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """What Airflow keeps of the newest try of a task instance.

    :param fields: its templated fields, rendered and masked.
    :param position: of the item, where it is a batch.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    position: int = 0
    try_number: int | None = None

    @cached_property
    def kwargs(self) -> Any:
        items = self.fields.get("items")
        if isinstance(items, list):
            return items[self.position] if self.position < len(items) else None
        return self.fields.get("task_kwargs")

    @cached_property
    def texts(self) -> frozenset[str]:
        """All that Airflow shows of it."""
        return frozenset(text for text in _texts(self.fields) if MASK not in text)

    def shows(self, text: str) -> bool:
        """Whether Airflow shows the text somewhere, which is then no secret; also within what it has cut."""
        return not text or text in self.texts or any(repr(text) in shown for shown in self._cut_texts)

    @cached_property
    def _cut_texts(self) -> tuple[str, ...]:
        return tuple(value for value in self.fields.values() if isinstance(value, str))


def shown_arguments(sent: Mapping[str, Any] | None, rendered: Rendered, submission: Submission) -> Any:
    """None where nobody knows them any more.

    :param sent: what horsies keeps.
    """
    if sent is not None:
        # An item may have taken the place of another since.
        same_places = not _holds_mask(rendered.fields.get("items"))
        other = rendered.kwargs if isinstance(rendered.kwargs, Mapping) else None
        return _shown(sent, other, rendered, same_places=same_places)
    # Another try may have rendered other arguments than those of the task that ran.
    return rendered.kwargs if rendered.try_number == submission.try_number else None


def hides(shown: Any) -> bool:
    """Whether something is not shown that may have been harmless."""
    return any(text == HIDDEN for text in _texts(shown))


def _shown(sent: Any, other: Any, rendered: Rendered, *, same_places: bool) -> Any:
    """What was sent, where Airflow shows it or something else in its place; they differ where it was rendered anew.

    :param other: what Airflow shows in its place, if anything.
    :param same_places: False where it may have stood in another place before, next to a secret.
    """
    match sent, other:
        case _, str() if MASK in other:
            return other if _fits(str(sent), other) else MASK
        case Mapping(), _:
            named = other if isinstance(other, Mapping) else {}
            return {
                name: _shown(value, named.get(name), rendered, same_places=same_places) for name, value in sent.items()
            }
        case list(), _:
            others = other if isinstance(other, list) else []
            same_places = same_places and not _holds_mask(others)
            pairs = zip_longest(sent, others[: len(sent)])
            return [_shown(value, each, rendered, same_places=same_places) for value, each in pairs]
        case str(), _:
            return sent if rendered.shows(sent) or (same_places and isinstance(other, str)) else HIDDEN
    return sent


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for each in value.values():
                yield from _texts(each)
        case list() | tuple():
            for each in value:
                yield from _texts(each)


def _holds_mask(value: Any) -> bool:
    return any(MASK in text for text in _texts(value))


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
