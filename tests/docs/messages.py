"""Every message a package can produce, as patterns made of its source.

A value in a message is what the source says it can be, as far as that can be read: a constant, an expression of texts,
what a function or ``__str__`` returns, the members of an enum. Any other value is one word, a quoted text, a time, or a
list of these: never a part of a sentence.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

# Shorter texts would match anything.
LEAST_CHARS = 20
DEEPEST = 9
PLACEHOLDER = re.compile(r"%(?:\.\d+)?[sdrf]|\{\w*\}")
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\+00:00| UTC)?"
OF_POSTGRES = (
    r"permission denied for schema \w+|canceling statement due to lock timeout|(?:SELECT|INSERT|UPDATE|DELETE) on \w+"
)
WORD = rf"(?:{TIME}|'[^']*'|\"[^\"]*\"|[^\s,;]+)"
VALUE = rf"(?:{OF_POSTGRES}|{WORD}(?:, {WORD})*)"
LEVELS = ("debug", "info", "warning", "error", "exception")
# An error that is logged reads like another message.
ERROR = rf"(?:{VALUE}|(?P<message>.+))"


def is_produced(message: str, sources: Path) -> bool:
    """Whether a text of the source, with its values in their places, reads like this message."""
    for pattern in patterns(sources):
        if found := pattern.fullmatch(message):
            inner = found.groupdict().get("message")
            if inner is None or is_produced(inner, sources):
                return True
    return False


@cache
def patterns(sources: Path) -> tuple[re.Pattern[str], ...]:
    files = [sources] if sources.is_file() else sorted(sources.rglob("*.py"))
    package = Package([ast.parse(path.read_text()) for path in files])
    return tuple(pattern for module in package.modules for pattern in module.patterns())


class Package:
    """What is known all over it: what functions return, the values of enums, and the classes of fields."""

    def __init__(self, trees: list[ast.Module]) -> None:
        self.returned: dict[str, list[tuple[ast.expr, Module]]] = defaultdict(list)
        self.members: dict[str, list[ast.expr]] = {}
        self.fields: dict[str, set[str]] = defaultdict(set)
        self.modules = [Module(tree, self) for tree in trees]


class Module:
    """The texts of one module."""

    def __init__(self, tree: ast.Module, package: Package) -> None:
        self._tree = tree
        self._package = package
        self._assigned: dict[str, list[ast.expr]] = defaultdict(list)
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._assigned[name].append(value)
                case ast.arg(arg=name, annotation=ast.Name() as annotation):
                    self._assigned[name].append(annotation)
                case ast.FunctionDef(name=name):
                    ends = [each.value for each in ast.walk(node) if isinstance(each, ast.Return)]
                    package.returned[name] += [(value, self) for value in ends if value is not None]
                case ast.ClassDef(name=name, body=body):
                    package.members[name] = [each.value for each in body if isinstance(each, ast.Assign)]
                    for each in body:
                        match each:
                            case ast.FunctionDef(name="__str__", body=[*_, ast.Return(value=ast.expr() as value)]):
                                package.returned[f"{name}.__str__"].append((value, self))
                            case ast.AnnAssign(target=ast.Name(id=field), annotation=ast.Name(id=of)):
                                package.fields[field].add(of)

    def patterns(self) -> Iterator[re.Pattern[str]]:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.expr) and _literal_chars(node) >= LEAST_CHARS:
                first, *others = self._text(node, DEEPEST).split(ERROR)
                yield re.compile("".join([first, ERROR, VALUE.join(others)] if others else [first]), re.DOTALL)

    def _text(self, node: ast.expr, depth: int) -> str:
        """What an expression can read like."""
        if depth == 0:
            return VALUE
        texts = list(dict.fromkeys(self._texts(node, depth)))
        return texts[0] if len(texts) == 1 else f"(?:{'|'.join(texts)})"

    def _texts(self, node: ast.expr, depth: int) -> Iterator[str]:
        match node:
            case ast.Constant(value=str(text)):
                yield self._filled(text, depth)
            case ast.JoinedStr(values=parts):
                yield "".join(self._text(part, depth) for part in parts)
            case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
                yield self._text(value, depth - 1)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                yield self._text(left, depth) + self._text(right, depth)
            case ast.IfExp(body=body, orelse=orelse):
                yield from (self._text(body, depth), self._text(orelse, depth))
            case ast.BoolOp(values=values):
                yield from (self._text(value, depth) for value in values)
            case ast.Name(id="error"):
                yield ERROR
            case ast.Name(id=name) if self._package.members.get(name):
                yield from (self._text(value, depth - 1) for value in self._package.members[name])
            case ast.Name(id=name) if name in self._assigned:
                yield from (self._text(value, depth - 1) for value in self._assigned[name])
            case ast.Attribute(attr=name) if texts := self._texts_of_field(name, depth):
                yield from texts
            case ast.Attribute(attr=name):
                yield from self._returned(name, depth)
            case ast.Call(func=ast.Attribute(attr=level), args=[ast.Constant(value=str(text)), *values]) if (
                level in LEVELS and values
            ):
                yield self._filled(text, depth, values)
            case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(separator)), attr="join"), args=[joined]):
                element = self._text(joined, depth - 1)
                yield f"{element}(?:{re.escape(separator)}{element})*"
            case ast.GeneratorExp(elt=element) | ast.ListComp(elt=element):
                yield self._text(element, depth)
            case ast.Call(func=ast.Name(id=name), args=values):
                yield from self._returned(name, depth)
                yield from (self._text(value, depth - 1) for value in values[:1])
            case ast.Call(func=ast.Attribute(value=ast.Name(id="dict"), attr="fromkeys"), args=[value]):
                yield self._text(value, depth - 1)
            case _:
                yield VALUE

    def _texts_of_field(self, name: str, depth: int) -> list[str]:
        """Where all fields of that name are of classes with a ``__str__`` of their own."""
        ends = [self._package.returned.get(f"{each}.__str__", []) for each in self._package.fields.get(name, ())]
        return [module._text(value, depth - 1) for end in ends for value, module in end] if all(ends) else []

    def _returned(self, name: str, depth: int) -> Iterator[str]:
        yield VALUE
        for value, module in self._package.returned.get(name, ()):
            yield module._text(value, depth - 1)

    def _filled(self, text: str, depth: int, values: Iterable[ast.expr] = ()) -> str:
        """A text with placeholders, and what stands in them: the values, or what has their names."""
        left = iter(values)

        def value(placeholder: str) -> str:
            if (node := next(left, None)) is not None:
                return self._text(node, depth - 1)
            return f"(?:{'|'.join(self._returned(placeholder.strip('{}'), depth))})"

        filled = re.escape(PLACEHOLDER.split(text)[0])
        for placeholder, literal in zip(PLACEHOLDER.findall(text), PLACEHOLDER.split(text)[1:], strict=True):
            filled += value(placeholder) + re.escape(literal)
        return filled


def _literal_chars(node: ast.AST) -> int:
    match node:
        case ast.Constant(value=str(text)):
            return len(text)
        case ast.JoinedStr(values=parts):
            return sum(map(_literal_chars, parts))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _literal_chars(left) + _literal_chars(right)
        case ast.Call(func=ast.Attribute(attr=level), args=[first, _, *_]) if level in LEVELS:
            return _literal_chars(first)
    return 0
