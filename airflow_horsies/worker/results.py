"""What a task returns: JSON, or a reference to what it wrote elsewhere."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from horsies import TaskError as HorsiesTaskError
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from airflow_horsies.core.task import ResultReference
from airflow_horsies.worker.errors import TaskFault

# What Airflow's XCom takes for the name of a class.
RESERVED_KEYS = frozenset({"__classname__", "__id__"})


def to_json(value: Any, *, max_rows: int | None, max_bytes: int) -> Any:
    """The value as JSON has it; a TaskFault says what of it cannot be that."""
    try:
        plain = _plain(value, max_rows, "the result")
        converted = to_jsonable_python(plain, inf_nan_mode="constants", fallback=_fallback)
        _require_keepable(converted, "the result")
        size = len(json.dumps(converted, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass"))
    except RecursionError:
        raise TaskFault("RESULT_NOT_JSON", "the result contains itself, or is nested too deeply for JSON") from None
    except (PydanticSerializationError, TypeError, ValueError) as error:
        raise TaskFault("RESULT_NOT_JSON", f"the result cannot be written as JSON: {error}") from None
    if size > max_bytes:
        raise TaskFault(
            "RESULT_TOO_LARGE",
            f"the result is {size:,} bytes of JSON and may be {max_bytes:,}: write it with save_result() and return "
            "its reference, or raise HORSIES_RESULT_BYTES",
        )
    return converted


def save_result(value: Any, uri: str, *, format: str = "parquet", **options: Any) -> ResultReference:
    """
    Write what is too large to return, and return a reference to it; the operator hands that on as its result.

    What was at the place before is replaced, so an attempt that runs again leaves one result.

    .. code-block:: python

        @spark_task(app, "sales.daily")
        def daily(spark: SparkSession, *, day: date) -> ResultReference:
            return save_result(spark.table("sales").where(f"day = '{day}'"), f"s3a://lake/daily/{day}")

    :param value: a DataFrame of Spark or pandas.
    :param uri: a folder: local, or on any file system Spark can write to.
    :param format: a format Spark can write: ``parquet``, ``orc``, ``json``, ``csv`` …
    :param options: options of that format.
    """
    from pyspark.sql import SparkSession

    frame = value.to_spark() if hasattr(value, "to_spark") else value
    if not hasattr(frame, "write"):
        frame = SparkSession.active().createDataFrame(value)
    frame.write.mode("overwrite").format(format).options(**options).save(uri)
    written = frame.sparkSession.read.format(format).schema(frame.schema).options(**options).load(uri)
    return ResultReference(uri=uri, format=format, rows=written.count(), columns=tuple(frame.columns))


def _plain(value: Any, max_rows: int | None, path: str) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        value = {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, HorsiesTaskError):
        raise TaskFault("RESULT_NOT_JSON", "the task returned a TaskError: raise an exception to fail")
    if isinstance(value, BaseModel):
        return value
    if _is_spark(value, "DataFrame"):
        return _rows(value.to_spark() if hasattr(value, "to_spark") else value, max_rows)
    if _is_spark(value, "Row"):
        names = getattr(value, "__fields__", None)
        value = list(value) if names is None else _named(names, value, path)
    if isinstance(value, Mapping):
        plain: dict[str, Any] = {}
        for key, item in value.items():
            name = _key(key, path)
            if name in plain:
                raise TaskFault("RESULT_NOT_JSON", f"{path} has two keys that JSON cannot tell apart: {key!r}")
            plain[name] = _plain(item, max_rows, f"{path}[{key!r}]")
        return plain
    if isinstance(value, list | tuple):
        return [_plain(item, max_rows, f"{path}[{position}]") for position, item in enumerate(value)]
    return value


def _rows(frame: Any, max_rows: int | None) -> list[Any]:
    if max_rows is None:
        raise TaskFault(
            "RESULT_NOT_JSON",
            "the result is a DataFrame: give the task max_rows=… to return its rows, or write it with save_result()",
        )
    rows = frame.limit(max_rows + 1).collect()
    if len(rows) > max_rows:
        raise TaskFault(
            "RESULT_TOO_LARGE",
            f"the result has more than {max_rows:,} rows, which is the task's max_rows: write it with save_result()",
        )
    _require_distinct(frame.columns, "the result")
    return [row.asDict(recursive=True) for row in rows]


def _named(names: list[str], row: Any, path: str) -> dict[str, Any]:
    _require_distinct(names, path)
    return dict(zip(names, row, strict=True))


def _require_distinct(names: list[str], path: str) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise TaskFault("RESULT_NOT_JSON", f"{path} has two columns named {twice!r}: rename one")


def _key(key: Any, path: str) -> str:
    """What JSON makes of a key."""
    if hasattr(key, "tolist"):
        key = key.tolist()
    if isinstance(key, str):
        return key
    if isinstance(key, bool) or key is None:
        return json.dumps(key)
    if isinstance(key, int | float):
        return str(key)
    if hasattr(key, "isoformat"):
        return str(key.isoformat())
    raise TaskFault("RESULT_NOT_JSON", f"{path} has a key that is no text: {key!r}")


def _fallback(value: Any) -> Any:
    """Numbers and times of numpy and pandas."""
    if type(value).__name__ == "datetime64":
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__} is nothing JSON knows")


def _require_keepable(value: Any, path: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise TaskFault("RESULT_NOT_JSON", f"{path} is {value}, which JSON cannot hold: return None instead")
    if isinstance(value, str) and "\0" in value:
        raise TaskFault("RESULT_NOT_JSON", f"{path} holds a NUL character, which Postgres cannot: remove it")
    if isinstance(value, dict):
        for key, item in value.items():
            if key in RESERVED_KEYS:
                raise TaskFault("RESULT_NOT_JSON", f"{path} has the key {key!r}, which Airflow keeps for itself")
            _require_keepable(key, f"a key of {path}")
            _require_keepable(item, f"{path}[{key!r}]")
    elif isinstance(value, list):
        for position, item in enumerate(value):
            _require_keepable(item, f"{path}[{position}]")


def _is_spark(value: Any, name: str) -> bool:
    return any(kind.__name__ == name and kind.__module__.startswith("pyspark.") for kind in type(value).__mro__)
