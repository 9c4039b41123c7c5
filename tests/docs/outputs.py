"""Outputs that the pages show, compared with real ones value by value."""

from __future__ import annotations

import re


def pattern_of(shown: str, values: dict[str, str]) -> re.Pattern[str]:
    """What a line that is shown must read like: with these values in their places, and durations of as many digits
    behind the point."""
    for placeholder, value in values.items():
        shown = shown.replace(placeholder, value)
    parts = re.split(r"\d+\.(\d+)(?= s\b)", shown.rstrip())
    texts, digits = parts[::2], parts[1::2]
    durations = [rf"\d+\.\d{{{len(each)}}}" for each in digits]
    escaped = [re.escape(text) for text in texts]
    return re.compile("".join(part for pair in zip(escaped, [*durations, ""], strict=True) for part in pair) + r"\s*")
