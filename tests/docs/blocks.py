"""The code blocks of the documentation: what each is, and what the tests do with it.

A fence names its language and, where that is not enough, what it is: ``python dag``, ``yaml kubernetes``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

CHECKOUT = Path(__file__).parents[2]
DOCS = CHECKOUT / "docs"
README = CHECKOUT / "README.md"
FRONT_DOOR = (README, CHECKOUT / "CONTRIBUTING.md", CHECKOUT / "SECURITY.md")

# Language and kind to what is done with such a block. What is not here fails the test.
RUNNERS = {
    "python tasks": "together, in the order of TASK_GUIDES, the file my_tasks.py of a real worker, with one app",
    "python dag": "parsed by Airflow and run with dag.test(), its tasks by that worker",
    "python parsed": "parsed as a file of DAGs; its tasks wait for an outside party",
    "python script": "run by Python beside that worker",
    "python test": "run by pytest, with a Spark session of its own",
    "python tested": "with the others of its guide, each in the file that its first line names, run by pytest",
    "bash": "each command run; or checked, where it needs a machine that is not here (see CHECKED_COMMANDS)",
    "sql": "run in the order of the guides, before or after the worker has made its tables",
    "json extra": "the extra of a connection: accepted by the hook",
    "ini environment": "the environment with which the worker is started",
    "ini settings": "accepted by the worker as its settings",
    "ini systemd": "verified by systemd-analyze where there is one; its command is the one the worker is started with",
    "ini airflow": "read by Airflow as its settings; ours have their defaults",
    "ini airflow changed": "read by Airflow as its settings; ours differ from their defaults",
    "ini pgbouncer": "the settings of a real PgBouncer, where one can be had",
    "yaml kubernetes": "validated against the schema of Kubernetes; its command is the worker's, its secrets are made",
    "yaml helm": "its keys are those of Airflow's chart",
    "dockerfile": "its instructions are known, and what it installs is what this package declares",
    "text output": "compared with what the command above it printed",
    "text log": "compared with the log of the DAG above it",
    "text message": "found among the messages this package can produce",
    "text airflow": "found among the messages the installed Airflow can produce",
    "text picture": "for the eye",
    "text tree": "compared with the package",
    "json result": "compared with the results of the DAG above it, task by task",
}
# The guides that write my_tasks.py, in the order in which a reader would.
TASK_GUIDES = (
    "README.md",
    "tutorial.md",
    "how-to/write-a-task.md",
    "how-to/workflows.md",
    "how-to/batch.md",
    "how-to/signals.md",
    "how-to/callbacks.md",
    "how-to/history-and-report.md",
)
# Commands that need a machine, a cluster or an index that is not here, by their first word: looked at, and not run.
CHECKED_COMMANDS = ("pip", "curl", "systemctl", "kubectl", "helm", "make", "python3.13")
WORKER_COMMAND = "python -m airflow_horsies.worker my_tasks:app"
START_COMMAND = "../.venv/bin/python -m airflow_horsies.embedded start hello_tasks:app"


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    guide: str
    line: int
    info: str
    text: str

    @property
    def language(self) -> str:
        return self.info.partition(" ")[0]

    @property
    def named(self) -> str:
        return f"{self.guide}:{self.line}"


def pages() -> list[Path]:
    """Every page of the site."""
    return sorted(DOCS.rglob("*.md"))


def documents() -> list[Path]:
    """The pages of the site, and the files that a visitor of the repository reads first."""
    return [*FRONT_DOOR, *pages()]


def name_of(path: Path) -> str:
    """How the tests name a document: by its path below docs/, or below the checkout."""
    return path.relative_to(DOCS if path.is_relative_to(DOCS) else CHECKOUT).as_posix()


def text_of(name: str) -> str:
    """A document by its name."""
    (path,) = [path for path in documents() if name_of(path) == name]
    return path.read_text()


def blocks_of(path: Path) -> list[Block]:
    """Fenced blocks; an indented one, whose language nobody can tell, comes without info."""
    return [
        Block(name_of(path), (token.map or [0])[0] + 1, token.info.strip(), token.content)
        for token in MarkdownIt().parse(path.read_text())
        if token.type in ("fence", "code_block")
    ]


def all_blocks(info: str | None = None) -> list[Block]:
    return [block for path in documents() for block in blocks_of(path) if info is None or block.info == info]


def commands(block: Block) -> list[str]:
    """The commands of a bash block, a continued line as one; comments are left out."""
    joined = re.sub(r"\\\n\s*", " ", block.text)
    lines = (re.sub(r"(^|\s{2,})#.*", "", line).strip() for line in joined.splitlines())
    return [line for line in lines if line]


def is_checked_only(command: str) -> bool:
    program = Path(command.split()[0]).name
    return program in CHECKED_COMMANDS or command in (WORKER_COMMAND, START_COMMAND)
