"""Every message a package can produce, as patterns: the texts in its source, where anything may stand for a value."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

# Shorter texts would match anything.
LEAST_CHARS = 20
PLACEHOLDER = re.compile(r"%(?:\.\d+)?[sdrf]|\{\w*\}")


def is_produced(message: str, sources: Path) -> bool:
    """Whether a text of the source, or one with another in its place for a value, reads like this message."""
    return any(pattern.fullmatch(message) for pattern in patterns(sources))


@cache
def patterns(sources: Path) -> tuple[re.Pattern[str], ...]:
    files = [sources] if sources.is_file() else sorted(sources.rglob("*.py"))
    return tuple(pattern for path in files for pattern in _patterns_of(ast.parse(path.read_text())))


def _patterns_of(tree: ast.AST) -> Iterator[re.Pattern[str]]:
    for node in ast.walk(tree):
        parts = list(_parts(node))
        if sum(len(part) for part in parts if part is not None) >= LEAST_CHARS:
            yield re.compile("".join(".*" if part is None else re.escape(part) for part in parts), re.DOTALL)


def _parts(node: ast.AST) -> Iterator[str | None]:
    """The literal texts of a string, and None for each value between them."""
    match node:
        case ast.Constant(value=str(text)):
            for number, literal in enumerate(PLACEHOLDER.split(text)):
                if number:
                    yield None
                yield literal
        case ast.JoinedStr(values=values):
            for value in values:
                yield value.value if isinstance(value, ast.Constant) else None
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            yield from _parts(left)
            yield from _parts(right)
