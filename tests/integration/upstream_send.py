"""Run by the interpreter of a release: upstream's own producer sends each variant and prints the ids."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import Any

import contract_tasks as tasks


def sent(result: Any) -> str:
    return str(result.ok_value.task_id)


good_until = datetime.fromisoformat(sys.argv[1])
ids = {
    "plain": sent(tasks.add.send(a=1, b=2)),
    "no arguments": sent(tasks.nothing.send()),
    "fixed": sent(tasks.with_fixed_retries.send(a=1)),
    "exponential": sent(tasks.with_exponential_retries.send(a=1)),
    "good_until": sent(tasks.with_fixed_retries.with_options(good_until=good_until).send(a=1)),
    "delayed": sent(tasks.add.schedule(30, a=1, b=2)),
    "unicode": sent(tasks.echo.send(value="naïve 馬 🐎 a\x00b")),
    "mixed": sent(tasks.mixed.send(n=1, text="x", items=[1, 2], flag=True, nested={"b": 1.5, "a": 2.0})),
}
print(json.dumps(ids))
