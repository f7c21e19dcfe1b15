"""The jars of an HDFS server, copied from Maven Central by Maven.

They lie in `$KLAMM_HDFS_JARS` if that is set, else below the user's cache directory. A folder is complete once it holds
the digest of the `pom.xml` that it was made from. `python -m klamm.hadoop.hdfs.jars` copies them; `--have` only asks.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path
from typing import Final

from klamm.core.errors import ConfigError
from klamm.core.java import cache_folder

VARIABLE: Final = "KLAMM_HDFS_JARS"
_DIGEST: Final = "pom.sha256"
FETCH_TIMEOUT_S: Final = 900.0


def jars_folder() -> Path:
    """Where the jars are, or are copied to."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    return cache_folder() / "hdfs-jars"


def have_jars() -> bool:
    digest = jars_folder() / _DIGEST
    return digest.is_file() and digest.read_text() == _wanted()


def find_class_path() -> str:
    """The jars as a class path, copied first where they are not there yet (65 MB). `ConfigError` says in one line why
    that is not possible here."""
    folder = jars_folder()
    if not have_jars():
        _fetch(folder)
    return str(folder / "*")


def _wanted() -> str:
    return hashlib.sha256(_pom()).hexdigest()


def _pom() -> bytes:
    return resources.files(__package__).joinpath("pom.xml").read_bytes()


def _fetch(folder: Path) -> None:
    """Copies into a folder beside it, renamed when complete, so that two processes do not mix theirs."""
    maven = shutil.which("mvn")
    if maven is None:
        raise ConfigError(
            "HDFS's jars are not here and Maven, which fetches them, is not installed: install it (for example "
            f"`apt-get install maven`), or name a folder that holds them in {VARIABLE}"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="hdfs-jars-") as made:
        pom, jars = Path(made, "pom.xml"), Path(made, "jars")
        pom.write_bytes(_pom())
        command = [
            maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime",
            f"-DoutputDirectory={jars}",
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise ConfigError(f"Maven did not fetch HDFS's jars within {FETCH_TIMEOUT_S:g} s") from error
        if done.returncode != 0:
            said = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line] or ["no message"]
            raise ConfigError(f"Maven could not fetch HDFS's jars: {said[0].strip()}")
        (jars / _DIGEST).write_text(_wanted())
        if have_jars():
            return  # another process was faster
        if folder.exists():
            shutil.rmtree(folder)
        jars.rename(folder)


if __name__ == "__main__":
    if "--have" in sys.argv[1:]:
        sys.exit(not have_jars())
    try:
        find_class_path()
    except ConfigError as error:
        sys.exit(f"klamm: {error}")
