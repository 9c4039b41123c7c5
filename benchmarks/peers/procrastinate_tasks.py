"""The app of the workers of procrastinate."""

import os

from procrastinate import App, PsycopgConnector

app = App(connector=PsycopgConnector(conninfo=os.environ["PEER_DATABASE"]))


@app.task(name="add")
async def add(a: int, b: int) -> int:
    return a + b
