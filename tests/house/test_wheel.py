"""A wheel built from the tree has every module, and runs in an empty environment: no Spark, no Java, no checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from klammtest.wheel import ROOMS, ROOT, build_wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def empty_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    venv = tmp_path_factory.mktemp("empty") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, timeout=120)
    subprocess.run(
        [str(venv / "bin/python"), "-m", "pip", "install", "-q", "--disable-pip-version-check",
         "-c", str(ROOT / "requirements/base.txt"), str(wheel)],
        check=True, timeout=280,
    )  # fmt: skip
    return venv


def run(venv: Path, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run([str(venv / "bin" / command[0]), *command[1:]], cwd=cwd, env=env, text=True,
                          capture_output=True, timeout=120, check=False)  # fmt: skip


def test_the_wheel_has_every_module(wheel: Path) -> None:
    tree = {"klamm/" + str(p.relative_to(ROOT)) for room in ROOMS for p in (ROOT / room).rglob("*.py")}
    tree |= {f"klamm/{p.name}" for p in (ROOT / "src/klamm").glob("*.py")}
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {n for n in names if n.endswith(".py")} == tree
    assert "klamm/py.typed" in names


def test_the_wheel_runs_in_an_empty_environment(empty_environment: Path, tmp_path: Path) -> None:
    shown = run(empty_environment, "klamm", "plugins", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "codecs" in shown.stdout
    started = run(empty_environment, "klamm", "init", cwd=tmp_path)
    assert started.returncode == 0, started.stderr
    checked = run(empty_environment, "klamm", "config", "check", cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr


def test_a_plain_install_has_no_spark(empty_environment: Path, tmp_path: Path) -> None:
    has = run(
        empty_environment, "python", "-c", "import importlib.util as u; print(u.find_spec('pyspark'))", cwd=tmp_path
    )
    assert has.stdout.strip() == "None"
    imported = run(empty_environment, "python", "-c", "import klamm; klamm.Producer; klamm.Consumer", cwd=tmp_path)
    assert imported.returncode == 0, imported.stderr
    load = run(empty_environment, "klamm", "load", cwd=tmp_path)
    assert load.returncode != 0
    assert "Traceback" not in load.stderr
    assert "klamm[spark]" in load.stderr
