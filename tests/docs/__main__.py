"""``make docs``: writes what the pages show of the code."""

from __future__ import annotations

from pathlib import Path

from tests.docs import architecture, llms
from tests.docs.blocks import DOCS, name_of, pages
from tests.docs.reference import REFERENCE, reference
from tests.docs.versions import with_versions


def write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
        print(f"wrote {name_of(path)}")


if __name__ == "__main__":
    for name, text in reference().items():
        write(REFERENCE / name, text)
    write(architecture.PAGE, architecture.with_tree(architecture.PAGE.read_text()))
    for page in pages():
        write(page, with_versions(page.read_text()))
    write(DOCS / llms.NAME, llms.text())
