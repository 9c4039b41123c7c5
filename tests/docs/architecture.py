"""The tree of the package on the page about the architecture, from the modules and what they say of themselves."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from tests.docs.blocks import DOCS

PACKAGE = Path(str(files("airflow_horsies")))
PAGE = DOCS / "concepts" / "architecture.md"
TREE = re.compile(r"(?<=```text tree\n).*?(?=```)", re.DOTALL)
HOP = re.compile(r"^\| (\d+) \| `([\w/]+\.\w+)` \| (?:`([\w.]+)`)? *\| (.+) \|$", re.MULTILINE)
DATA = {".sql": "one statement per file", ".js": "scripts, served as they are", ".css": "styles, served as they are"}
NAME_CHARS = 26


def with_tree(page: str) -> str:
    return TREE.sub(lambda _: tree(), page, count=1)


def tree() -> str:
    return "".join(f"{line}\n" for line in ["airflow_horsies/", *_lines(PACKAGE, 1)])


def _lines(folder: Path, depth: int) -> Iterator[str]:
    """Modules first, then rooms; the front door comes before the house."""
    for module in sorted(folder.glob("*.py")):
        if module.stem != "__init__":
            yield _line(module.name, depth, _summary(module))
    # A folder that git has emptied stays.
    folders = [
        each for each in folder.iterdir() if each.is_dir() and each.name != "__pycache__" and any(each.iterdir())
    ]
    for below in sorted(folders):
        module = below / "__init__.py"
        kinds = [DATA[each.suffix] for each in sorted(below.iterdir()) if each.suffix in DATA]
        yield _line(f"{below.name}/", depth, _summary(module) if module.exists() else (kinds or [""])[0])
        yield from _lines(below, depth + 1)


def _line(name: str, depth: int, text: str) -> str:
    return f"{'  ' * depth}{name:{NAME_CHARS - 2 * depth}}  {text}".rstrip()


def _summary(module: Path) -> str:
    """The first sentence of its docstring."""
    text = ast.get_docstring(ast.parse(module.read_text())) or ""
    return re.split(r"(?<=[^.])\. ", " ".join(text.partition("\n\n")[0].split()))[0].rstrip(".").replace("``", "")


@dataclass(frozen=True)
class Hop:
    """A place where the arguments of a task come by."""

    number: int
    file: str
    function: str
    text: str


def hops(page: str) -> list[Hop]:
    return [Hop(int(number), file, function or "", text) for number, file, function, text in HOP.findall(page)]


def source_of(hop: Hop) -> str:
    """The source of a hop; an error where there is no such file or function."""
    text = (PACKAGE / hop.file).read_text()
    if not hop.function:
        return text
    body: list[ast.stmt] = ast.parse(text).body
    node: ast.AST = ast.Module(body, [])
    for name in hop.function.split("."):
        (node,) = [each for each in getattr(node, "body", []) if getattr(each, "name", None) == name]
    return ast.get_source_segment(text, node) or ""
