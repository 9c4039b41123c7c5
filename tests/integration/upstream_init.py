"""Run by the interpreter of a release: makes or migrates horsies' tables without starting a worker."""

from __future__ import annotations

import asyncio
import inspect
import os

from horsies import AppConfig, Horsies, PostgresConfig
from pydantic import SecretStr

url = SecretStr(os.environ["HORSIES_DATABASE_URL"])
made = Horsies(AppConfig(broker=PostgresConfig(database_url=url))).get_broker().ensure_schema_initialized()
if inspect.isawaitable(made):
    asyncio.run(made)
