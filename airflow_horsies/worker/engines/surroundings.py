"""The state that all sessions of a JVM share besides Spark's own settings, as it was before the first task."""

from __future__ import annotations

import logging
import sys
from typing import Any

from airflow_horsies.borrowed import pyspark as borrowed
from airflow_horsies.worker.errors import first_line

log = logging.getLogger(__name__)

# Credentials and endpoints of file systems.
FILE_SYSTEM_PREFIX = "fs."


class Surroundings:
    """Hadoop's configuration, the JVM's own settings, and files added for Python.

    Each is copied and restored as a whole, in a few calls to the JVM.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._jvm = borrowed.jvm_of(context)
        self._hadoop = borrowed.java_context(context).hadoopConfiguration()
        self._hadoop_bytes = self._write_hadoop()
        self._file_systems = self._hadoop.getPropsWithPrefix(FILE_SYSTEM_PREFIX)
        self._properties = self._jvm.java.lang.System.getProperties().clone()
        self._time_zone = self._jvm.java.util.TimeZone.getDefault()
        self._locale = self._jvm.java.util.Locale.getDefault()
        self._locales = [(purpose, self._jvm.java.util.Locale.getDefault(purpose)) for purpose in _purposes(self._jvm)]
        self._checkpoint_folder = borrowed.scala_context(context).checkpointDir()
        self._log_levels = _log_levels(self._jvm)
        self._added = [(files, files.clone()) for files in _added_files(context)]
        self._python_includes = list(borrowed.python_includes(context))
        self._path = list(sys.path)

    def restore(self) -> None:
        """Restore the state in the JVM."""
        self._jvm.java.lang.System.setProperties(self._properties.clone())
        # Once a default is set, the system property has no effect.
        self._jvm.java.util.TimeZone.setDefault(self._time_zone)
        self._restore_locale()
        self._restore_hadoop()
        # The public method would create another folder.
        getattr(borrowed.scala_context(self._context), "checkpointDir_$eq")(self._checkpoint_folder)
        if self._log_levels is not None:
            self._log_levels.restore()
        for files, before in self._added:
            # Jobs of later tasks would fetch these files, and fail if they no longer exist.
            files.clear()
            files.addAll(before)

    def _restore_locale(self) -> None:
        locale = self._jvm.java.util.Locale
        locale.setDefault(self._locale)
        for purpose, before in self._locales:
            locale.setDefault(purpose, before)

    def _restore_hadoop(self) -> None:
        has_other_file_systems = not self._hadoop.getPropsWithPrefix(FILE_SYSTEM_PREFIX).equals(self._file_systems)
        data = self._jvm.java.io.ByteArrayInputStream(self._hadoop_bytes)
        self._hadoop.readFields(self._jvm.java.io.DataInputStream(data))
        if has_other_file_systems:
            # A file system that was opened with the credentials of a task is cached, and the next task would use it.
            self._jvm.org.apache.hadoop.fs.FileSystem.closeAll()

    def restore_python(self) -> None:
        """Restore the state in Python, without the JVM, which may be gone. Imported modules stay."""
        if borrowed.python_includes(self._context) != self._python_includes:
            added = set(borrowed.python_includes(self._context)) - set(self._python_includes)
            borrowed.python_includes(self._context)[:] = self._python_includes
            sys.path[:] = [place for place in sys.path if place in self._path or not _ends_with(place, added)]

    def _write_hadoop(self) -> Any:
        """Serialise thousands of settings inside the JVM, in one call."""
        written = self._jvm.java.io.ByteArrayOutputStream()
        self._hadoop.write(self._jvm.java.io.DataOutputStream(written))
        return written.toByteArray()


class LogLevels:
    """The log levels of the JVM and the threshold of Spark's shell; read in Spark 4.0 to 4.3, with Log4j 2."""

    def __init__(self, jvm: Any) -> None:
        self._context = jvm.org.apache.logging.log4j.LogManager.getContext(False)
        self._configuration = self._context.getConfiguration()
        loggers = dict(self._configuration.getLoggers().items())
        self._levels = {name: (logger, logger.getLevel()) for name, logger in loggers.items()}
        # Spark treats pyspark as a shell, which has a separate threshold until a level is set.
        self._spark_logging = getattr(getattr(jvm.org.apache.spark.internal, "Logging$"), "MODULE$")
        self._shown = self._spark_logging.sparkShellThresholdLevel()

    def restore(self) -> None:
        for name in list(self._configuration.getLoggers()):
            if name not in self._levels:
                self._configuration.removeLogger(name)
        for logger, level in self._levels.values():
            logger.setLevel(level)
        self._context.updateLoggers()
        getattr(self._spark_logging, "sparkShellThresholdLevel_$eq")(self._shown)


def _log_levels(jvm: Any) -> LogLevels | None:
    try:
        return LogLevels(jvm)
    except Exception as error:
        log.info("Log levels that tasks set in the JVM are not reset: %s", first_line(error))
        return None


def _purposes(jvm: Any) -> list[Any]:
    """The categories of a locale, each with its own default."""
    category = jvm.java.util.Locale.Category
    return [category.DISPLAY, category.FORMAT]


def _added_files(context: Any) -> list[Any]:
    """The files of ``addFile`` and ``addArchive`` by session; read in Spark 4.0 to 4.3."""
    scala_context = borrowed.scala_context(context)
    try:
        return [scala_context.addedFiles(), scala_context.addedArchives()]
    except Exception as error:
        log.info("Files that tasks add to Spark are not removed: %s", first_line(error))
        return []


def _ends_with(place: str, names: set[str]) -> bool:
    return place.rpartition("/")[2] in names
