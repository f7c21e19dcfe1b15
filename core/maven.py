"""Jars that Maven copies from Maven Central, once, into the user's cache directory."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from .errors import ConfigError
from .java import cache_folder

__all__ = ["MavenJars"]

FETCH_TIMEOUT_S: Final = 900.0
_DIGEST: Final = "pom.sha256"


@dataclass(frozen=True, slots=True)
class MavenJars:
    """The jars that the `pom.xml` of `package` requires.

    They are in the folder that the environment's `variable` names, or else in `name` below the cache directory. A
    folder is complete once it contains the digest of the `pom.xml`. `what` and `size` (` (65 MB)`) describe the jars
    in messages.
    """

    what: str
    package: str
    name: str
    variable: str
    size: str = ""

    def folder(self) -> Path:
        """Returns the folder that holds the jars, or to which they are copied."""
        named = os.environ.get(self.variable)
        return Path(named) if named else cache_folder() / self.name

    def have(self) -> bool:
        digest = self.folder() / _DIGEST
        return digest.is_file() and digest.read_text() == self._wanted()

    def announcement(self) -> str | None:
        """Returns a line about the download that `find` will start; None if the jars are there. Raises `ConfigError`
        if they are missing and Maven is not installed."""
        if self.have():
            return None
        self._maven()
        return f"fetching {self.what}{self.size} into {self.folder()}"

    def find(self) -> Path:
        """Returns the folder; copies the jars first if they are missing. Raises `ConfigError` in one line if that is
        not possible."""
        folder = self.folder()
        if not self.have():
            self._fetch(folder)
        return folder

    def _maven(self) -> str:
        maven = shutil.which("mvn")
        if maven is None:
            raise ConfigError(
                f"{self.what} are missing, and Maven, which fetches them, is not installed: install it (for example "
                f"`apt-get install maven`), or name a folder that holds them in {self.variable}"
            )
        return maven

    def _wanted(self) -> str:
        return hashlib.sha256(self._pom()).hexdigest()

    def _pom(self) -> bytes:
        return resources.files(self.package).joinpath("pom.xml").read_bytes()

    def _fetch(self, folder: Path) -> None:
        """Copies into a temporary folder and renames it when complete, so that two processes do not interfere."""
        maven = self._maven()
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{self.name}-") as made:
            pom, jars = Path(made, "pom.xml"), Path(made, "jars")
            pom.write_bytes(self._pom())
            command = [
                maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime",
                f"-DoutputDirectory={jars}",
            ]  # fmt: skip
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
            except subprocess.TimeoutExpired as error:
                raise ConfigError(f"Maven did not fetch {self.what} within {FETCH_TIMEOUT_S:g} s") from error
            if done.returncode != 0:
                said = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line] or ["no message"]
                raise ConfigError(f"Maven could not fetch {self.what}: {said[0].strip()}")
            (jars / _DIGEST).write_text(self._wanted())
            if self.have():
                return  # another process was faster
            if folder.exists():
                shutil.rmtree(folder)
            jars.rename(folder)
