"""The result of a task: JSON, or a reference to data that it wrote elsewhere."""

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

COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
# Airflow's XCom deserialisation gives these keys a meaning.
RESERVED_KEYS = frozenset({"__classname__", "__id__"})


def to_json(value: Any, *, max_rows: int | None, max_bytes: int) -> Any:
    """The value as JSON; raises a TaskFault if it cannot be converted."""
    return _converted(value, max_rows, max_bytes)[0]


def to_json_text(value: Any, *, max_rows: int | None, max_bytes: int) -> str:
    """As to_json, encoded for our own tables."""
    text = _converted(value, max_rows, max_bytes)[1]
    # A lone surrogate cannot be stored as it is.
    return text if text.isascii() or _is_encodable(text) else json.dumps(json.loads(text), separators=(",", ":"))


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _converted(value: Any, max_rows: int | None, max_bytes: int) -> tuple[Any, str]:
    try:
        plain = _plain(value, max_rows, "result")
        converted = to_jsonable_python(plain, inf_nan_mode="constants", fallback=_fallback)
        _require_storable(converted, "result")
        text = COMPACT.encode(converted)
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    except RecursionError:
        raise TaskFault(
            "RESULT_NOT_JSON", "The result contains itself or is nested too deeply. Return a flatter value."
        ) from None
    except (PydanticSerializationError, TypeError, ValueError) as error:
        raise TaskFault(
            "RESULT_NOT_JSON", f"The result cannot be converted to JSON: {error}. Return only JSON types."
        ) from None
    if size > max_bytes:
        raise TaskFault(
            "RESULT_TOO_LARGE",
            f"The result has {size:,} bytes of JSON, and the limit is {max_bytes:,}. Write it with save_result() and "
            "return the reference, or raise HORSIES_RESULT_BYTES.",
        )
    return converted, text


def save_result(value: Any, uri: str, *, format: str = "parquet", **options: Any) -> ResultReference:
    """
    Write a DataFrame that is too large to return; the operator returns the reference as its result.

    Existing data at the place is replaced, so a retry leaves one result.

    .. code-block:: python

        @spark_task(app, "sales.daily")
        def daily(spark: SparkSession, *, day: date) -> ResultReference:
            return save_result(spark.table("sales").where(f"day = '{day}'"), f"s3a://lake/daily/{day}")

    :param value: a DataFrame of Spark or pandas.
    :param uri: a folder, local or on any file system that Spark can write to.
    :param format: a format that Spark can write: ``parquet``, ``orc``, ``json``, ``csv`` …
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
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, HorsiesTaskError):
        raise TaskFault("RESULT_NOT_JSON", "The task returned a TaskError. Raise an exception to fail the task.")
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
                raise TaskFault("RESULT_NOT_JSON", f"Two keys in {path} have the same JSON form: {key!r}. Rename one.")
            plain[name] = _plain(item, max_rows, f"{path}[{key!r}]")
        return plain
    if isinstance(value, list | tuple):
        return [_plain(item, max_rows, f"{path}[{position}]") for position, item in enumerate(value)]
    return value


def _rows(frame: Any, max_rows: int | None) -> list[Any]:
    if max_rows is None:
        raise TaskFault(
            "RESULT_NOT_JSON",
            "The result is a DataFrame. Set max_rows of the task to return its rows, or write it with save_result().",
        )
    rows = frame.limit(max_rows + 1).collect()
    if len(rows) > max_rows:
        raise TaskFault(
            "RESULT_TOO_LARGE",
            f"The result has more than {max_rows:,} rows, the max_rows of the task. Write it with save_result().",
        )
    _require_distinct(frame.columns, "result")
    return [row.asDict(recursive=True) for row in rows]


def _named(names: list[str], row: Any, path: str) -> dict[str, Any]:
    _require_distinct(names, path)
    return dict(zip(names, row, strict=True))


def _require_distinct(names: list[str], path: str) -> None:
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise TaskFault("RESULT_NOT_JSON", f"Two columns of {path} are named {duplicate!r}. Rename one.")


def _key(key: Any, path: str) -> str:
    """The JSON form of a key."""
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
    raise TaskFault("RESULT_NOT_JSON", f"A key in {path} is not a string: {key!r}. Convert it to a string.")


def _fallback(value: Any) -> Any:
    """Convert numbers and times of numpy and pandas."""
    if type(value).__name__ == "datetime64":
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__} has no JSON form")


def _require_storable(value: Any, path: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise TaskFault(
            "RESULT_NOT_JSON", f"The value of {path} is {value}, which JSON cannot represent. Return None instead."
        )
    if isinstance(value, str) and "\0" in value:
        raise TaskFault(
            "RESULT_NOT_JSON", f"The value of {path} contains a NUL character, which Postgres cannot store. Remove it."
        )
    if isinstance(value, dict):
        for key, item in value.items():
            if key in RESERVED_KEYS:
                raise TaskFault("RESULT_NOT_JSON", f"The key {key!r} in {path} is reserved by Airflow. Rename it.")
            _require_storable(key, f"a key of {path}")
            _require_storable(item, f"{path}[{key!r}]")
    elif isinstance(value, list):
        for position, item in enumerate(value):
            _require_storable(item, f"{path}[{position}]")


def _is_spark(value: Any, name: str) -> bool:
    return any(kind.__name__ == name and kind.__module__.startswith("pyspark.") for kind in type(value).__mro__)
