from __future__ import annotations

import os

import pytest

pytest.importorskip("horsies")

from airflow_horsies.worker.masking import mask, mask_known, masked


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment of its own, as any secret of the real one would be masked, too."""
    own: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", own)
    return own


def test_nothing_is_masked_before_a_secret_is_known() -> None:
    assert masked("user=admin password=hunter22") == "user=admin password=hunter22"


def test_a_secret_is_masked_wherever_it_stands() -> None:
    assert mask("hunter22") == "hunter22"
    assert masked("hunter22, xhunter22x\nand hunter22") == "***, x***x\nand ***"


def test_a_secret_learned_later_is_masked_from_then_on() -> None:
    mask("first-secret")
    assert masked("first-secret second-secret") == "*** second-secret"
    mask("second-secret")
    assert masked("first-secret second-secret") == "*** ***"


def test_a_secret_that_begins_with_another_one_goes_as_a_whole() -> None:
    mask("abcdef")
    mask("abcdef-and-more")
    assert masked("abcdef-and-more abcdef") == "*** ***"


def test_a_secret_of_several_lines_is_masked_line_by_line() -> None:
    mask("-----BEGIN KEY-----\nMIIEabcdefghijklmnop\n-----END KEY-----")
    assert masked("-----BEGIN KEY-----\nMIIEabcdefghijklmnop\n-----END KEY-----") == "***\n***\n***"
    assert masked("its middle is MIIEabcdefghijklmnop") == "its middle is ***"


def test_a_secret_is_text_and_no_pattern() -> None:
    mask("a.c*(x")
    assert masked("a.c*(x abc*(x") == "*** abc*(x"


@pytest.mark.parametrize("value", ["", "test", None, 123456])
def test_what_is_too_short_or_no_text_is_handed_back_and_not_masked(value: object) -> None:
    assert mask(value) is value  # type: ignore[arg-type]
    assert masked("this test has 123456 None") == "this test has 123456 None"


@pytest.mark.parametrize(
    "name",
    [
        "PGPASSWORD",
        "MYSQL_PASSWD",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "GITHUB_TOKEN",
        "OPENAI_API_KEY",
        "APIKEY",
        "SSH_PRIVATE_KEY",
        "GCP_CREDENTIALS",
    ],
)
def test_variables_with_a_telling_name_are_masked(environ: dict[str, str], name: str) -> None:
    environ[name] = "s3cret-word"
    mask_known({}, [])
    assert masked("it is s3cret-word") == "it is ***"


def test_other_variables_are_not_masked(environ: dict[str, str]) -> None:
    environ.update(PATH="/usr/bin", HOSTNAME="worker-1", KEYBOARD="german")
    mask_known({}, [])
    assert masked("/usr/bin worker-1 german") == "/usr/bin worker-1 german"


def test_switches_and_numbers_under_a_telling_name_are_not_masked(environ: dict[str, str]) -> None:
    environ.update(TOKENIZERS_PARALLELISM="false", TOKEN_TTL="86400")
    mask_known({"spark.security.credentials.renewal": "12.75s"}, [])
    assert masked("false 86400 12.75s") == "false 86400 12.75s"


@pytest.mark.usefixtures("environ")
def test_secrets_of_sparks_settings_are_masked() -> None:
    conf = {
        "spark.hadoop.fs.s3a.access.key": "s3a-access",
        "fs.azure.account.key.x.dfs.core.windows.net": "azure-account",
        "spark.hadoop.fs.s3a.secret.key": "s3a-secret",
        "spark.hadoop.fs.s3a.session.token": "s3a-session",
        "spark.ssl.keyPassword": "key-password",
        "spark.app.name": "flights",
    }
    mask_known(conf, [])
    assert masked("s3a-access azure-account flights") == "*** *** flights"
    assert masked("s3a-secret s3a-session key-password flights") == "*** *** *** flights"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("REDIS_URL", "redis://:s3cret-word@cache:6379/0"),
        ("CELERY_BROKER_URL", "sentinel://:s3cret-word@a:26379;sentinel://:s3cret-word@b:26379"),
        ("SENTRY_DSN", "https://s3cret-word:s3cret-word@sentry.example/42"),
        ("PLAIN_DSN", "host=db user=etl password=s3cret-word dbname=x"),
        ("QUOTED_DSN", "host=db user=etl password='s3cret-word' dbname=x"),
        ("AIRFLOW_CONN_MY_DB", "postgres://etl:s3cret-word@db:5432/x?sslmode=require"),
        ("AIRFLOW_CONN_MY_API", '{"conn_type": "http", "host": "api", "password": "s3cret-word"}'),
        ("AIRFLOW_CONN_DEEP", '{"conn_type": "aws", "extra": {"aws_secret_access_key": "s3cret-word"}}'),
        ("AIRFLOW_CONN_TEXT", '{"conn_type": "aws", "extra": "{\\"session_token\\": \\"s3cret-word\\"}"}'),
        ("AIRFLOW_CONN_EXTRA", "aws://?__extra__=%7B%22aws_secret_access_key%22%3A+%22s3cret-word%22%7D"),
        ("AZURE_STORAGE", "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=s3cret-word;EndpointSuffix=x"),
        ("SERVICE_BUS", "Endpoint=sb://x/;SharedAccessKeyName=root;SharedAccessKey=s3cret-word"),
        ("SQL_SERVER", "Server=db;User Id=sa;Password=s3cret-word;"),
        ("ODBC", "DRIVER={x};SERVER=db;UID=sa;PWD=s3cret-word"),
        ("JDBC", "jdbc:sqlserver://db:1433;user=sa;password=s3cret-word"),
        ("CACHE", "cache.example:6380,password=s3cret-word,ssl=True"),
        ("BLOB_SAS", "https://a.blob.core.windows.net/c?sv=2024&sig=s3cret-word"),
        ("KAFKA_JAAS", 'PlainLoginModule required username="u" password="s3cret-word";'),
        ("PROXY", "http://u:s3cret-word@proxy:3128"),
    ],
)
def test_passwords_in_urls_and_connection_strings_of_the_environment_are_masked(
    environ: dict[str, str], name: str, value: str
) -> None:
    environ[name] = value
    mask_known({}, [])
    assert masked("it is s3cret-word, of etl at db") == "it is ***, of etl at db"
    assert "s3cret-word" not in masked(f"{name} is {value}")


@pytest.mark.parametrize(
    "value",
    [
        "https://index.example:8443/simple@latest/x",
        "-Dspark.token.enabled=true -Xmx512m",
        "https://docs.example/page?token=12345",
        "{not json, password}",
        "[1, 2",
        "user@example.com",
        "postgres://etl@db:5432/x",
    ],
)
def test_what_only_looks_like_one_is_not_masked(environ: dict[str, str], value: str) -> None:
    environ["MY_SETTING"] = value
    mask_known({}, [])
    assert masked(f"{value} true 12345 8443/simple") == f"{value} true 12345 8443/simple"


@pytest.mark.usefixtures("environ")
def test_passwords_of_database_urls_are_masked_as_written_and_as_meant() -> None:
    mask_known({}, ["postgresql+psycopg://u:p%40ss%2Fword@db/x", "postgresql://direct/x", ""])
    assert masked("p%40ss%2Fword is p@ss/word of u at db") == "*** is *** of u at db"


@pytest.mark.usefixtures("environ")
@pytest.mark.parametrize(
    "url",
    [
        "postgresql://db/x?user=u&password=s3cret%2Fword",
        "postgresql://db/x?sslpassword=s3cret%2Fword&user=u",
        "sc://spark:15002/;token=s3cret%2Fword;user_id=u",
    ],
)
def test_secrets_among_the_parameters_of_urls_are_masked(url: str) -> None:
    mask_known({}, [url])
    assert masked("s3cret%2Fword is s3cret/word of u") == "*** is *** of u"
