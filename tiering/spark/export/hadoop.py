"""Hadoop: the files of an export, wherever Spark can write.

The idea: Spark reaches `file:`, `hdfs:`, `s3a:` and others by Hadoop's file systems. So an export's
own notes and renames go the same way, by the JVM that Spark has anyway. Spark's settings for a
place hold here too.

Invariants: a file that is written here is there whole or not at all: it is renamed to its name. A
crash may take one that was to be replaced.
Names are relative to the export's root, with `/` between their parts.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tiering.errors import ExportBroken, SparkFailed, SparkUnsuitable
from tiering.spark.session import spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEME: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:")
_GLOB: Final = re.compile(r"([\\*?\[\]{}])")
_NO_PART: Final = re.compile(r"No FileSystem for scheme|ClassNotFoundException")
_AWS: Final = "org.apache.hadoop:hadoop-aws:{0}"
_PARTS: Final = {
    "s3": _AWS,
    "s3a": _AWS,
    "abfs": "org.apache.hadoop:hadoop-azure:{0}",
    "abfss": "org.apache.hadoop:hadoop-azure:{0}",
}
"""The packages that a Spark lacks that was installed by pip, by the URL's scheme."""
TEMPORARY: Final = "._writing_"
"""The prefix of the name of a file that is being written; no reader looks at such files."""


class ListedFile(NamedTuple):
    """A file's name, and its size in bytes."""

    name: str
    size: int


class Folders:
    """Files below a root, which is a path of this machine or a URL that Hadoop knows. Raises
    SparkFailed for an error of Hadoop, SparkUnsuitable where there is no JVM at hand, or where its
    Hadoop lacks the file system for the URL.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm = getattr(spark, "_jvm", None)
        if jvm is None:
            raise SparkUnsuitable(
                "an export needs the JVM of a classic session of Spark, and this is one of Spark "
                "Connect; run it by spark-submit or on this machine"
            )
        self._jvm: Any = jvm
        self.root = root.rstrip("/") if _SCHEME.match(root) else os.path.abspath(root)
        with spark_errors():
            self._conf = spark.sparkContext._jsc.hadoopConfiguration()
            top = self._path("")
        try:
            with spark_errors():
                self._system = top.getFileSystem(self._conf)
                self.root = str(self._system.makeQualified(top))
        except SparkFailed as e:
            if not _NO_PART.search(str(e)):
                raise
            raise SparkUnsuitable(self._what_lacks(e)) from e

    def _what_lacks(self, e: SparkFailed) -> str:
        scheme = self.root.partition(":")[0]
        version = self._jvm.org.apache.hadoop.util.VersionInfo.getVersion()
        package = _PARTS.get(scheme, f"PACKAGE-WITH-{scheme.upper()}").format(version)
        return (
            f"this Spark has nothing to write to {self.root} with ({e}): give it Hadoop's part for "
            f"that (--conf spark.jars.packages={package})"
            + (", and say s3a: instead of s3:" if scheme == "s3" else "")
            + ", or export to a folder, and copy that"
        )

    def at(self, name: str) -> str:
        """The whole path of a file or folder, as Spark's writers take it."""
        return f"{self.root}/{name}" if name else self.root

    def for_reading(self, name: str) -> str:
        """The whole path as Spark's readers take it: some characters mean patterns to them."""
        return _GLOB.sub(r"\\\1", self.at(name))

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.at(name))

    def exists(self, name: str) -> bool:
        """Whether there is a file or folder."""
        with spark_errors():
            return bool(self._system.exists(self._path(name)))

    def names(self, folder: str) -> list[str]:
        """The names directly in a folder, in order, but for those that begin with a dot; none if
        there is no folder.
        """
        with spark_errors():
            path = self._path(folder)
            if not self._system.exists(path):
                return []
            found = [str(one.getPath().getName()) for one in self._system.listStatus(path)]
        return sorted(one for one in found if not one.startswith("."))

    def files(self, folder: str, ending: str) -> list[ListedFile]:
        """The files below a folder whose names end so, in order, but for those of tasks that Spark
        has not ended.
        """
        found = []
        with spark_errors():
            path = self._path(folder)
            if not self._system.exists(path):
                return []
            above = len(str(self._system.makeQualified(self._path("")))) + 1
            listed = self._system.listFiles(path, True)
            while listed.hasNext():
                one = listed.next()
                whole = str(one.getPath().toString())
                if whole.endswith(ending) and "/_temporary/" not in whole:
                    found.append(ListedFile(whole[above:], int(one.getLen())))
        return sorted(found)

    def read(self, name: str) -> bytes | None:
        """A file's contents; None if there is no such file."""
        with spark_errors():
            path = self._path(name)
            if not self._system.exists(path):
                return None
            stream = self._system.open(path)
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def write(self, name: str, data: bytes) -> None:
        """Writes a file, whole, in place of one that may be there."""
        folder, _, last = name.rpartition("/")
        temporary = f"{folder}/{TEMPORARY}{last}"
        with spark_errors():
            stream = self._system.create(self._path(temporary), True)
            try:
                stream.write(bytearray(data))
            finally:
                stream.close()
        self.delete(name)
        self.rename(temporary, name)

    def rename(self, name: str, to: str) -> None:
        """Gives a file another name; the folder is made. Raises ExportBroken if Hadoop does not."""
        with spark_errors():
            target = self._path(to)
            self._system.mkdirs(target.getParent())
            done = self._system.rename(self._path(name), target)
        if not done:
            raise ExportBroken(
                f"{self.at(name)} can't be renamed to {self.at(to)}; look whether somebody else "
                "removes or makes files there, and export again"
            )

    def make(self, folder: str) -> None:
        """Makes a folder, unless it is there."""
        with spark_errors():
            self._system.mkdirs(self._path(folder))

    def delete(self, name: str) -> None:
        """Removes a file, or a folder with all that is in it; does nothing if there is none."""
        with spark_errors():
            self._system.delete(self._path(name), True)

    def messages(self, name: str) -> int:
        """The number of rows of a Parquet file, by its footer."""
        with spark_errors():
            hadoop = self._jvm.org.apache.parquet.hadoop
            file = hadoop.util.HadoopInputFile.fromPath(self._path(name), self._conf)
            reader = hadoop.ParquetFileReader.open(file)
            try:
                return int(reader.getRecordCount())
            finally:
                reader.close()
