"""Every error that a part of the package raises, rendered from its source with a word in place of each value.

An error is a call of an exception class. Where its message is a parameter of the function around it, as in ``require``,
each call of that function is an error.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

VALUE = "VALUE"
DEEPEST = 5
MOST_TEXTS = 64
# Where a class takes its message; the first argument elsewhere.
MESSAGE_AT = {"InvalidTask": 1, "TaskRefused": 1, "TaskFault": 1, "HTTPException": 1}
# Their first argument names a field.
OF_FIELDS = frozenset({"InvalidTask", "TaskRefused"})
# Names of parameters that hold a message, or a sentence of one.
PARAMETERS = frozenset({"message", "problem", "hint", "remedy"})
Function = ast.FunctionDef | ast.AsyncFunctionDef
Bound = Mapping[str, ast.expr]


@dataclass(frozen=True, slots=True)
class RaisedError:
    """One way an error can read; ``field`` is that of an InvalidTask."""

    kind: str
    field: str | None
    message: str
    place: str


def raised_errors(package: Path, rooms: tuple[str, ...]) -> list[RaisedError]:
    """:param rooms: folders and modules of the package; what only carries the text of another error is left out."""
    found = [error for path, error in _Source(package).errors() if path.relative_to(package).parts[0] in rooms]
    return list(dict.fromkeys(error for error in found if re.search("[a-z]", error.message)))


class _Source:
    """The modules of a package, their constants and functions, and its exception classes."""

    def __init__(self, package: Path) -> None:
        self._package = package
        self.trees = {path: ast.parse(path.read_text()) for path in sorted(package.rglob("*.py"))}
        self._constants: dict[str, ast.expr] = {}
        self._functions: dict[str, list[Function]] = defaultdict(list)
        self._calls: dict[str, list[tuple[Path, ast.Call]]] = defaultdict(list)
        self._around: dict[ast.AST, Function] = {}
        for path, tree in self.trees.items():
            self._collect(path, tree)
        self._exceptions = self._find_exceptions()

    def _collect(self, path: Path, tree: ast.Module) -> None:
        for statement in tree.body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._constants[name] = value
        for node in ast.walk(tree):
            if isinstance(node, Function):
                self._functions[node.name].append(node)
                self._around |= {inner: node for inner in ast.walk(node) if inner is not node}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                self._calls[_name(node.func)].append((path, node))

    def _find_exceptions(self) -> set[str]:
        nodes = [node for tree in self.trees.values() for node in ast.walk(tree)]
        classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
        raised = {
            _name(node.exc.func) for node in nodes if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
        }

        def is_exception(name: str) -> bool:
            if name in classes:
                return any(is_exception(_name(base)) for base in classes[name].bases)
            kind = getattr(builtins, name, None)
            return isinstance(kind, type) and issubclass(kind, BaseException)

        # Those of other packages are known by being raised.
        return {name for name in raised if name and name not in self._functions} | set(filter(is_exception, classes))

    def errors(self) -> Iterator[tuple[Path, RaisedError]]:
        for kind in sorted(self._exceptions):
            for path, call in self._calls[kind]:
                yield from self._render(kind, call, path)

    def _render(self, kind: str, call: ast.Call, path: Path) -> Iterator[tuple[Path, RaisedError]]:
        at, around = MESSAGE_AT.get(kind, 0), self._around.get(call)
        if len(call.args) <= at:
            return
        for where, line, bound in self._bindings(call.args[at], around) or [(path, call.lineno, {})]:
            fields = self._texts(call.args[0], around, bound, DEEPEST) if kind in OF_FIELDS else [None]
            messages = self._texts(call.args[at], around, bound, DEEPEST)
            place = f"{where.relative_to(self._package.parent)}:{line}"
            for field, message in product(fields, messages):
                yield where, RaisedError(kind, field, message, place)

    def _bindings(self, message: ast.expr, around: Function | None) -> list[tuple[Path, int, Bound]]:
        """The arguments of every call of the function around an error whose message is one of its parameters."""
        if around is None or not any(_is_parameter(node, around) for node in _parts(message)):
            return []
        names = [argument.arg for argument in around.args.args]
        return [
            (
                path,
                call.lineno,
                dict(zip(names, call.args, strict=False)) | {key.arg: key.value for key in call.keywords if key.arg},
            )
            for path, call in self._calls[around.name]
        ]

    def _texts(self, node: ast.expr, around: Function | None, bound: Bound, depth: int) -> list[str]:
        return list(dict.fromkeys(self._alternatives(node, around, bound, depth)))[:MOST_TEXTS]

    def _alternatives(self, node: ast.expr, around: Function | None, bound: Bound, depth: int) -> Iterator[str]:
        if depth == 0:
            yield VALUE
            return
        match node:
            case ast.Constant(value=str(text)):
                yield text
            case ast.JoinedStr(values=parts):
                yield from self._joined([self._texts(part, around, bound, depth) for part in parts])
            case ast.FormattedValue(value=ast.Name() | ast.IfExp() | ast.Call() as value, format_spec=None):
                yield from self._texts(value, around, bound, depth - 1)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                yield from self._joined([self._texts(side, around, bound, depth) for side in (left, right)])
            case ast.IfExp(body=body, orelse=orelse):
                yield from self._texts(body, around, bound, depth)
                yield from self._texts(orelse, around, bound, depth)
            case ast.BoolOp(values=values):
                for value in values:
                    yield from self._texts(value, around, bound, depth)
            case ast.Call(func=ast.Attribute(value=text, attr="format")):
                yield from (re.sub(r"\{\w*\}", VALUE, one) for one in self._texts(text, around, bound, depth))
            case ast.Call(func=ast.Name(id=name)) if name in self._functions:
                for function in self._functions[name]:
                    yield from self._returned(function, depth)
            case ast.Name(id=name):
                yield from self._named(name, around, bound, depth)
            case _:
                yield VALUE

    @staticmethod
    def _joined(parts: list[list[str]]) -> Iterator[str]:
        for number, texts in enumerate(product(*parts)):
            if number == MOST_TEXTS:
                return
            yield "".join(texts)

    def _named(self, name: str, around: Function | None, bound: Bound, depth: int) -> Iterator[str]:
        if name in bound:
            yield from self._texts(bound[name], self._around.get(bound[name]), {}, depth - 1)
            return
        assigned = [] if around is None else _assigned(around, name)
        if not assigned and name in self._constants:
            assigned = [self._constants[name]]
        texts = [text for value in assigned for text in self._texts(value, around, bound, depth - 1)]
        yield from texts or [VALUE]

    def _returned(self, function: Function, depth: int) -> Iterator[str]:
        values = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
        for value in values:
            yield from [VALUE] if value is None else self._texts(value, function, {}, depth - 1)


def _assigned(function: Function, name: str) -> list[ast.expr]:
    found = []
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                found.append(value)
    return found


def _parts(message: ast.expr) -> list[ast.expr]:
    """The expressions that are put together to a message."""
    if isinstance(message, ast.JoinedStr):
        return [part.value for part in message.values if isinstance(part, ast.FormattedValue)]
    return [message]


def _is_parameter(node: ast.expr, function: Function) -> bool:
    parameters = {argument.arg for argument in function.args.args}
    return isinstance(node, ast.Name) and node.id in PARAMETERS & parameters


def _name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""
