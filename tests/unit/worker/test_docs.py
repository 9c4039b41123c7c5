"""What the guides say of workers."""

from __future__ import annotations

import pytest

pytest.importorskip("horsies")

from airflow_horsies.worker.settings import WorkerSettings
from tests.docs.blocks import Block, all_blocks
from tests.docs.reference import PAGES, REFERENCE, VARIABLES, reference

NOT_OURS = {"HADOOP_CONF_DIR"}
NOTHING = dict.fromkeys(
    ("database_url", "direct_database_url", "queues", "dead_after", "spark_master", "spark_conf"), None
)


@pytest.mark.parametrize("name", PAGES)
def test_reference_is_what_the_code_says(name: str) -> None:
    assert (REFERENCE / name).read_text() == reference()[name], "the code has changed: run 'make docs'"


@pytest.mark.parametrize(
    "block", all_blocks("ini settings") + all_blocks("ini environment"), ids=lambda block: block.named
)
def test_settings_are_accepted(block: Block) -> None:
    environ = dict(line.split("=", 1) for line in block.text.splitlines())
    assert set(environ) - NOT_OURS <= set(VARIABLES)
    settings = WorkerSettings.resolve(**NOTHING, environ=environ)
    assert settings.spark.master == environ.get("HORSIES_SPARK_MASTER", settings.spark.master)
    assert bool(settings.spark.conf) == ("HORSIES_SPARK_CONF" in environ)
    assert bool(settings.direct_database_url) == ("HORSIES_DIRECT_DATABASE_URL" in environ)
