"""The app of the Celery peer."""

import os

from celery import Celery

app = Celery("bench", broker=os.environ["PEER_REDIS"], backend=os.environ["PEER_REDIS"])


@app.task
def add(a: int, b: int) -> int:
    return a + b
