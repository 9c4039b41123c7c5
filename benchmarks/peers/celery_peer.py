"""Runs many short tasks through a Celery worker with as many processes as ours; see Peer.

A second number in a line is the size of Celery's chunks; without it the tasks are a group.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from celery import group
from celery_tasks import add

worker = subprocess.Popen(
    [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "-c", os.environ["PEER_PROCESSES"], "-l", "ERROR"],
    cwd=Path(__file__).parent,
    stdout=sys.stderr,
)
try:
    assert add.delay(1, 1).get(timeout=60) == 2
    for line in sys.stdin:
        count, *chunk_size = map(int, line.split())
        begun = time.perf_counter()
        if chunk_size:
            parts = add.chunks(((number, 1) for number in range(count)), chunk_size[0]).apply_async().get(timeout=600)
            results = [each for part in parts for each in part]
        else:
            results = group(add.s(number, 1) for number in range(count)).apply_async().get(timeout=600)
        elapsed = time.perf_counter() - begun
        assert results == list(range(1, count + 1))
        print(elapsed, flush=True)
finally:
    worker.terminate()
    worker.wait(timeout=30)
