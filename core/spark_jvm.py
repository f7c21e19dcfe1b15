"""The options of Java for a local Spark that lives for seconds, in which starting takes more time than computing.

Optimizing its code costs more than it saves (measured: 45 s of processor time for a load of a year of flights, 23 s
with the first compiler alone). Finding, reading and verifying classes is a third of a small load; an archive of
them, mapped into memory (class data sharing), saves most of that. `python -m klamm.hadoop.class_archive` makes it,
once for each Java and Spark. Without it everything works as well, and takes longer.
"""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from .errors import ConfigError
from .java import cache_folder, find_java

__all__ = ["SHORT_LIVED", "archive_file", "java_options", "recording_options"]

SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_RECORDED: Final = "2"
"""The version of the recorded job: change it when `class_archive` records another job."""
_QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"  # an archive that does not match is ignored silently


def java_options() -> str:
    """Returns the value for `spark.driver.extraJavaOptions`."""
    archive = archive_file()
    if archive is None or not archive.exists():
        return SHORT_LIVED
    return f"{SHORT_LIVED} {_QUIET} -XX:SharedArchiveFile={archive}"


def recording_options(archive: Path) -> str:
    """Returns the options of a JVM that writes the classes it has loaded to `archive` when it ends."""
    return f"{SHORT_LIVED} {_QUIET} -XX:ArchiveClassesAtExit={archive}"


def archive_file() -> Path | None:
    """Returns the path of the archive for this Java and this Spark, which may not exist yet; None without Java or
    Spark.
    """
    spark = find_spec("pyspark")
    try:
        java = Path(find_java()).resolve()
    except ConfigError:
        return None
    if spark is None or spark.origin is None:
        return None
    jars = Path(spark.origin).parent / "jars"
    release = java.parent.parent / "release"
    told = release.read_text(errors="replace") if release.is_file() else ""
    names = sorted(jar.name for jar in jars.glob("*.jar"))
    digest = hashlib.sha256("\n".join((_RECORDED, str(java), told, str(jars), *names)).encode()).hexdigest()
    return cache_folder() / f"spark-{digest[:16]}.jsa"
