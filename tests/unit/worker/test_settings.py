from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("horsies")

from airflow_horsies.exceptions import HorsiesError
from airflow_horsies.worker.settings import (
    DEFAULTS,
    LOCAL_DEFAULTS,
    Queue,
    SettingsError,
    SparkSettings,
    WorkerSettings,
)

SECRET = "s3cret-word"
URL = f"postgresql+psycopg://worker:{SECRET}@db:5432/horsies"


def resolve(environ: Mapping[str, str] | None = None, **given: Any) -> WorkerSettings:
    arguments: dict[str, Any] = dict.fromkeys(
        ("direct_database_url", "queues", "dead_after", "spark_master", "spark_conf")
    )
    return WorkerSettings.resolve(**{"database_url": URL, **arguments, **given}, environ=environ or {})


def test_a_database_is_all_that_must_be_given() -> None:
    settings = resolve()
    assert settings == WorkerSettings(database_url=URL)
    assert (settings.queues, settings.dead_after) == ((), timedelta(minutes=2))
    assert (settings.spark.master, settings.log_lines, settings.result_bytes) == ("local[*]", 10_000, 1_000_000)


def test_everything_can_come_from_the_environment() -> None:
    settings = resolve(
        {
            "HORSIES_DATABASE_URL": URL,
            "HORSIES_DIRECT_DATABASE_URL": "postgresql+psycopg://direct/horsies",
            "HORSIES_QUEUES": "fast:1:4, slow:50 ,,rest",
            "HORSIES_DEAD_AFTER_SECONDS": "30",
            "HORSIES_SPARK_MASTER": "yarn",
            "HORSIES_SPARK_CONF": '{"spark.executor.memory": "2g", "spark.executor.cores": 4}',
            "HORSIES_LOG_LINES": "0",
            "HORSIES_RESULT_BYTES": " 2000 ",
        },
        database_url=None,
    )
    assert settings == WorkerSettings(
        database_url=URL,
        direct_database_url="postgresql+psycopg://direct/horsies",
        queues=(Queue("fast", 1, 4), Queue("slow", 50), Queue("rest")),
        dead_after=timedelta(seconds=30),
        spark=SparkSettings(master="yarn", conf={"spark.executor.memory": "2g", "spark.executor.cores": "4"}),
        log_lines=0,
        result_bytes=2_000,
    )


def test_what_is_given_wins_over_the_environment() -> None:
    settings = resolve(
        {
            "HORSIES_DATABASE_URL": "postgresql+psycopg://other/x",
            "HORSIES_DIRECT_DATABASE_URL": "postgresql+psycopg://other/y",
            "HORSIES_QUEUES": "other",
            "HORSIES_DEAD_AFTER_SECONDS": "30",
            "HORSIES_SPARK_MASTER": "yarn",
            "HORSIES_SPARK_CONF": '{"a": "environment", "b": "environment"}',
        },
        direct_database_url="postgresql+psycopg://direct/horsies",
        queues=["fast:1", Queue("slow")],
        dead_after=timedelta(minutes=5),
        spark_master="local[2]",
        spark_conf={"b": "given"},
    )
    assert (settings.database_url, settings.direct_database_url) == (URL, "postgresql+psycopg://direct/horsies")
    assert settings.queues == (Queue("fast", 1), Queue("slow"))
    assert settings.dead_after == timedelta(minutes=5)
    assert settings.spark == SparkSettings(master="local[2]", conf={"a": "environment", "b": "given"})


def test_no_queues_can_be_asked_for_whatever_the_environment_says() -> None:
    assert resolve({"HORSIES_QUEUES": "other"}, queues=[]).queues == ()


def test_variables_that_are_set_to_nothing_count_as_not_set() -> None:
    names = ("DIRECT_DATABASE_URL", "QUEUES", "DEAD_AFTER_SECONDS", "SPARK_MASTER", "SPARK_CONF", "LOG_LINES")
    settings = resolve({f"HORSIES_{name}": "" for name in names})
    assert not settings.direct_database_url
    assert (settings.queues, settings.dead_after, settings.log_lines) == ((), timedelta(minutes=2), 10_000)
    assert settings.spark == SparkSettings()


@pytest.mark.parametrize("environ", [{}, {"HORSIES_DATABASE_URL": ""}])
def test_a_missing_database_is_told_with_what_to_set(environ: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match=r"HORSIES_DATABASE_URL.*database_url to horsies_app\(\)"):
        resolve(environ, database_url=None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HORSIES_QUEUES", ":5"),
        ("HORSIES_QUEUES", "fast:high"),
        ("HORSIES_QUEUES", "fast:-1"),
        ("HORSIES_QUEUES", "fast:1.5"),
        ("HORSIES_QUEUES", "fast:1:"),
        ("HORSIES_QUEUES", "fast:1:2:3"),
        ("HORSIES_QUEUES", "fast:²"),
        ("HORSIES_QUEUES", "fast:0"),
        ("HORSIES_QUEUES", "fast:101"),
        ("HORSIES_QUEUES", "fast,slow,fast:1"),
        ("HORSIES_DEAD_AFTER_SECONDS", "4"),
        ("HORSIES_DEAD_AFTER_SECONDS", "-30"),
        ("HORSIES_DEAD_AFTER_SECONDS", "2.5"),
        ("HORSIES_DEAD_AFTER_SECONDS", "2m"),
        ("HORSIES_DEAD_AFTER_SECONDS", "7200"),
        ("HORSIES_SPARK_MASTER", "http://spark:8080"),
        ("HORSIES_SPARK_MASTER", "spark"),
        ("HORSIES_SPARK_MASTER", "localhost:7077"),
        ("HORSIES_SPARK_CONF", "spark.executor.memory=2g"),
        ("HORSIES_SPARK_CONF", '["spark.executor.memory"]'),
        ("HORSIES_SPARK_CONF", "null"),
        ("HORSIES_LOG_LINES", "-1"),
        ("HORSIES_LOG_LINES", "many"),
        ("HORSIES_LOG_LINES", "²"),
        ("HORSIES_RESULT_BYTES", "999"),
        ("HORSIES_RESULT_BYTES", "1MB"),
    ],
)
def test_a_value_that_cannot_be_used_is_told_with_the_name_of_its_variable(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"^{name}"):
        resolve({name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("HORSIES_DEAD_AFTER_SECONDS", "5"), ("HORSIES_LOG_LINES", "0"), ("HORSIES_RESULT_BYTES", "1000")],
)
def test_the_least_value_of_a_number_is_accepted(name: str, value: str) -> None:
    resolve({name: value})


@pytest.mark.parametrize("variable", ["HORSIES_DATABASE_URL", "HORSIES_DIRECT_DATABASE_URL"])
@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_the_url_of_a_database_gets_the_driver_horsies_wants(variable: str, scheme: str) -> None:
    environ = {"HORSIES_DATABASE_URL": URL, variable: f"{scheme}://worker:{SECRET}@other/horsies?sslmode=require"}
    settings = resolve(environ, database_url=None)
    found = settings.direct_database_url if "DIRECT" in variable else settings.database_url
    assert found == f"postgresql+psycopg://worker:{SECRET}@other/horsies?sslmode=require"


@pytest.mark.parametrize("variable", ["HORSIES_DATABASE_URL", "HORSIES_DIRECT_DATABASE_URL"])
@pytest.mark.parametrize("scheme", ["mysql://", "postgresql+asyncpg://", ""])
def test_the_url_of_another_database_is_told_with_the_name_of_its_variable(variable: str, scheme: str) -> None:
    environ = {"HORSIES_DATABASE_URL": URL, variable: f"{scheme}worker:{SECRET}@other/horsies"}
    with pytest.raises(SettingsError, match=f"^{variable} ") as caught:
        resolve(environ, database_url=None)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("dead_after", [timedelta(seconds=1), timedelta(seconds=-30), timedelta(hours=2)])
def test_a_dead_after_that_horsies_does_not_allow_is_told_also_where_it_is_given(dead_after: timedelta) -> None:
    with pytest.raises(SettingsError, match=r"^HORSIES_DEAD_AFTER_SECONDS must be from 5 to 3600 seconds, not "):
        resolve(dead_after=dead_after)


@pytest.mark.parametrize(
    ("text", "queues"),
    [("spark", (Queue("spark"),)), ("a:1,b:2", (Queue("a", priority=1), Queue("b", priority=2)))],
)
def test_queues_can_be_given_as_one_text(text: str, queues: tuple[Queue, ...]) -> None:
    assert resolve(queues=text).queues == queues


@pytest.mark.parametrize("value", ["null", "[1]", '{"b": 1}'])
def test_a_value_of_spark_conf_that_is_no_setting_is_told_with_its_name(value: str) -> None:
    with pytest.raises(SettingsError, match=r"^HORSIES_SPARK_CONF: .*'spark\.executor\.memory'"):
        resolve({"HORSIES_SPARK_CONF": f'{{"spark.ui.enabled": true, "spark.executor.memory": {value}}}'})


def test_a_bad_spark_conf_is_not_repeated_as_it_may_hold_secrets() -> None:
    with pytest.raises(SettingsError) as caught:
        resolve({"HORSIES_SPARK_CONF": f'{{"spark.ssl.keyPassword": "{SECRET}"'})
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_settings_errors_are_ours() -> None:
    assert issubclass(SettingsError, HorsiesError)


def test_secrets_are_not_in_the_repr() -> None:
    settings = resolve(
        direct_database_url=URL,
        spark_master=f"sc://host:15002/;token={SECRET}",
        spark_conf={"spark.hadoop.fs.s3a.secret.key": SECRET},
    )
    assert SECRET not in repr(settings)


def test_the_token_of_a_master_that_cannot_be_used_is_not_repeated() -> None:
    with pytest.raises(SettingsError, match="http://host/") as caught:
        resolve(spark_master=f"http://host/;token={SECRET}")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "queue"),
    [
        ("fast", Queue("fast", priority=100, max_running=None)),
        (" fast:1 ", Queue("fast", priority=1)),
        ("fast:1:0", Queue("fast", priority=1, max_running=0)),
    ],
)
def test_a_queue_is_parsed(text: str, queue: Queue) -> None:
    assert Queue.parse(text) == queue


@pytest.mark.parametrize(
    "master", ["local", "local[4]", "spark://host:7077", "yarn", "k8s://https://host:6443", "sc://host:15002"]
)
def test_every_kind_of_master_is_known(master: str) -> None:
    settings = SparkSettings(master=master)
    assert settings.is_connect is (master == "sc://host:15002")


def test_spark_is_bound_to_the_loopback_address_only_where_it_is_local() -> None:
    assert SparkSettings(master="local[2]").full_conf() == {**DEFAULTS, **LOCAL_DEFAULTS}
    assert SparkSettings(master="spark://host:7077").full_conf() == DEFAULTS


def test_the_authors_spark_settings_win_over_the_defaults() -> None:
    conf = {"spark.ui.enabled": "true", "spark.driver.host": "worker-1", "spark.sql.shuffle.partitions": "2"}
    full = SparkSettings(conf=conf).full_conf()
    assert {name: full[name] for name in conf} == conf
    assert full["spark.driver.bindAddress"] == "127.0.0.1"
