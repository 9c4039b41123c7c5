"""The arguments of a task that a page may show: those it was sent with, as far as Airflow shows them, too.

Airflow only masks text: numbers, booleans and the names of arguments are always shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import Any

from airflow_horsies.core.chunk import ITEMS
from airflow_horsies.core.masking import MASK
from airflow_horsies.core.submission import Submission

HIDDEN = "(hidden)"
WHY_HIDDEN = (
    f'Text that may be secret is "{HIDDEN}": Airflow keeps no rendered value of it, or only the start of a long one.'
)


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """What Airflow keeps of the newest try of a task instance.

    :param fields: its templated fields, rendered and masked.
    :param position: the position of the item in a batch.
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
        """All text that Airflow shows."""
        return frozenset(text for text in _texts(self.fields) if MASK not in text)

    def shows(self, text: str) -> bool:
        """Whether Airflow shows the text somewhere, also in a cut value. It is then no secret."""
        return not text or text in self.texts or any(repr(text) in shown for shown in self._cut_texts)

    @cached_property
    def _cut_texts(self) -> tuple[str, ...]:
        return tuple(value for value in self.fields.values() if isinstance(value, str))


def shown_arguments(sent: Mapping[str, Any] | None, rendered: Rendered, submission: Submission) -> Any:
    """The arguments to show; None if they are no longer stored.

    :param sent: the arguments that horsies keeps.
    """
    if sent is not None:
        # Items may have changed their positions since.
        same_places = not _contains_mask(rendered.fields.get("items"))
        other = rendered.kwargs if isinstance(rendered.kwargs, Mapping) else None
        return _shown(sent, other, rendered, same_places=same_places)
    # Another try may have rendered different arguments.
    return rendered.kwargs if rendered.try_number == submission.try_number else None


def kwargs_of_item(sent: Mapping[str, Any] | None, number: int | None) -> Mapping[str, Any] | None:
    """The arguments of an item of a chunk, or of a task of its own."""
    if sent is None or number is None:
        return sent
    items = sent.get(ITEMS)
    return items[number] if isinstance(items, list) and number < len(items) else None


def hides(shown: Any) -> bool:
    """Whether values are hidden that may not be secret."""
    return any(text == HIDDEN for text in _texts(shown))


def _shown(sent: Any, other: Any, rendered: Rendered, *, same_places: bool) -> Any:
    """What was sent, where Airflow shows it or another value in its place. They differ after another rendering.

    :param other: what Airflow shows in its place, if anything.
    :param same_places: False if it may have been in another place before, next to a secret.
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
            same_places = same_places and not _contains_mask(others)
            pairs = zip_longest(sent, others[: len(sent)])
            return [_shown(value, item, rendered, same_places=same_places) for value, item in pairs]
        case str(), _:
            return sent if rendered.shows(sent) or (same_places and isinstance(other, str)) else HIDDEN
    return sent


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for item in value.values():
                yield from _texts(item)
        case list() | tuple():
            for item in value:
                yield from _texts(item)


def _contains_mask(value: Any) -> bool:
    return any(MASK in text for text in _texts(value))


def _fits(text: str, masked: str) -> bool:
    """Whether the masked text can be a masking of the other."""
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
