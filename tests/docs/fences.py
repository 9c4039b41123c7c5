"""An extension of Python-Markdown: of ``python dag``, the site needs the language only."""

from __future__ import annotations

import re
from typing import Any

from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor

KIND = re.compile(r"^(\s*```\w+) \w+\s*$")
# Before the blocks are taken out.
PRIORITY = 100


class _WithoutKinds(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        return [KIND.sub(r"\1", line) for line in lines]


class FenceKinds(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(_WithoutKinds(md), "fence_kinds", PRIORITY)


def makeExtension(**options: Any) -> FenceKinds:
    return FenceKinds(**options)
