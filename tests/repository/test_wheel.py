"""A wheel built from the tree has every module, and runs in an empty environment: no Spark, no Java, no checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from klamm.core.log.log_directory import holder
from klammtest.pages.documents import Reader, examples
from klammtest.ports import free_port
from klammtest.suite.wheel import FOLDERS, ROOT, build_wheel, copy_tree

_ROUND_TRIP = """
from klamm.core.records import native
from klamm.core.records.codecs import CodecTable
from klamm.core.records.decode import decode_batch
from klamm.core.records.encode import encode_batch
from klamm.core.records.header import BatchHeader
batch = encode_batch([(1, None, b"value", ())])
print(native.IMPLEMENTATION, decode_batch(batch, 0, BatchHeader.parse(batch), CodecTable())[0].value, native.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def fallback_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("fallback"), compiler="/bin/false")


def install(venv: Path, *what: str, cwd: Path | None = None) -> None:
    """Installs packages by this environment's pip, and leaves it to Python to compile what is imported."""
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(venv / "bin/python"), "install", "-q", "--no-compile",
         "--disable-pip-version-check", *what],
        cwd=cwd, check=True, timeout=500,
    )  # fmt: skip


@pytest.fixture(scope="module")
def empty_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    venv = tmp_path_factory.mktemp("empty") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=600)
    install(venv, "-c", str(ROOT / "requirements/base.txt"), str(wheel))
    return venv


@pytest.fixture(scope="module")
def environment_of_clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """README's `pip install ./klamm` beside a clone; what Klamm needs is this environment's, so that only
    setuptools is fetched."""
    folder = tmp_path_factory.mktemp("clone")
    copy_tree(folder / "klamm")
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=600)
    install(venv, "--no-deps", "./klamm", cwd=folder)
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "needed.pth").write_text("".join(f"{path}\n" for path in sys.path if path.endswith("site-packages")))
    return venv


def run(venv: Path, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run([str(venv / "bin" / command[0]), *command[1:]], cwd=cwd, env=env, text=True,
                          capture_output=True, timeout=600, check=False)  # fmt: skip


def test_the_wheel_has_every_module(wheel: Path) -> None:
    tree = {"klamm/" + str(p.relative_to(ROOT)) for folder in FOLDERS for p in (ROOT / folder).rglob("*.py")}
    tree |= {f"klamm/{p.name}" for p in (ROOT / "src/klamm").glob("*.py")}
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {n for n in names if n.endswith(".py") and not n.startswith("klamm/pages/")} == tree
    assert "klamm/py.typed" in names


def test_the_wheel_has_the_pages_and_the_examples(wheel: Path, empty_environment: Path, tmp_path: Path) -> None:
    files = [path for name in ("docs", "examples") for path in (ROOT / name).rglob("*") if path.is_file()]
    wanted = {f"klamm/pages/{p.relative_to(ROOT)}" for p in files if p.suffix in (".md", ".yaml", ".service", ".json")}
    assert wanted <= set(zipfile.ZipFile(wheel).namelist())
    listed = run(empty_environment, "klamm", "docs", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert all(Path(line).is_file() for line in listed.stdout.splitlines())
    shown = run(empty_environment, "klamm", "docs", "klamm.service", cwd=tmp_path)
    assert shown.stdout == (ROOT / "examples/klamm.service").read_text()
    missing = run(empty_environment, "klamm", "docs", "alert.yaml", cwd=tmp_path)
    assert (missing.returncode, missing.stderr) == (
        2, "klamm: there is no page or example 'alert.yaml'; did you mean alerts.yaml? (klamm docs lists them)\n"
    )  # fmt: skip


def test_without_a_compiler_the_wheel_is_for_any_platform(fallback_wheel: Path, tmp_path: Path) -> None:
    assert fallback_wheel.name.endswith("-py3-none-any.whl")
    assert not [n for n in zipfile.ZipFile(fallback_wheel).namelist() if n.endswith(".so")]
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=600)
    (site,) = venv.glob("lib/python*/site-packages")
    here = [path for path in sys.path if path.endswith("site-packages")]  # what klamm needs, not its editable install
    (site / "needed.pth").write_text("".join(f"{path}\n" for path in here))
    zipfile.ZipFile(fallback_wheel).extractall(site)
    shown = run(venv, "python", "-c", _ROUND_TRIP, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.split() == ["fallback", "b'value'", str(site / "klamm/core/records/native.py")]


@pytest.mark.skipif(sysconfig.get_config_var("CC") is None or shutil.which("cc") is None, reason="no C compiler here")
def test_with_a_compiler_the_wheel_has_the_module_for_any_python(wheel: Path) -> None:
    assert "-cp311-abi3-" in wheel.name
    assert "klamm/core/records/_native.abi3.so" in zipfile.ZipFile(wheel).namelist()


def test_the_wheel_runs_in_an_empty_environment(empty_environment: Path, tmp_path: Path) -> None:
    shown = run(empty_environment, "klamm", "plugins", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "codecs" in shown.stdout
    started = run(empty_environment, "klamm", "init", cwd=tmp_path)
    assert started.returncode == 0, started.stderr
    checked = run(empty_environment, "klamm", "config", "check", cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("environment", ["empty_environment", "environment_of_clone"])
def test_readmes_first_block_runs_as_it_stands(
    environment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    venv: Path = request.getfixturevalue(environment)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    block = next(example for example in examples(ROOT / "README.md") if example.language == "bash")
    output = Reader(tmp_path, {"9092": str(free_port())}, tools=venv / "bin").paste(block)
    shown = [line.split(":")[0] for line in output.splitlines()]
    assert {"klamm broker ready", "hello, world"} <= set(shown)
    assert "broker 0 has stopped" in output
    assert holder(tmp_path / "first" / "data") is None, "nothing runs on"
    where = run(venv, "python", "-c", "import klamm; print(klamm.__file__)", cwd=tmp_path)
    assert where.stdout.startswith(str(venv)), "it was not this tree's own"


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
    assert "pip install 'pyspark" in load.stderr


# -- the project of docs/testing.md -------------------------------------------------------------------------------


def test_without_pytest_the_suites_say_what_is_missing(empty_environment: Path, tmp_path: Path) -> None:
    """Before `install_clients` installs it."""
    shown = run(empty_environment, "python", "-c", "import klamm.testing.contracts", cwd=tmp_path)
    assert shown.stderr.splitlines()[-1].endswith("need pytest, which is not installed: `pip install pytest`")


def install_clients(venv: Path) -> None:
    """What the project imports besides Klamm; nothing is done the second time."""
    install(venv, "-c", str(ROOT / "requirements/dev.txt"), "pytest", "pytest-asyncio==1.5.0", "confluent-kafka",
            "aiokafka")  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of the page's files, and of the codec that the page refers to."""
    for page in ("testing.md", "plugins.md"):
        for example in examples(ROOT / "docs" / page):
            title = example.options.get("title", "")
            if page == "testing.md" or title == "bzip2.py":
                (tmp_path / title).write_text(example.text)
    return tmp_path


def test_the_project_of_the_page_runs(empty_environment: Path, project: Path) -> None:
    venv = empty_environment
    install_clients(venv)
    where = run(venv, "python", "-c", "import klamm; print(klamm.__file__)", cwd=project)
    assert where.stdout.startswith(str(venv)), where.stdout + where.stderr
    alone = run(venv, "python", "without_pytest.py", cwd=project)
    assert alone.returncode == 0, alone.stderr
    done = run(venv, "python", "-m", "pytest", "-q", cwd=project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^(\d+) passed in", done.stdout, re.M), done.stdout


def test_the_example_package_passes_the_suites(empty_environment: Path, tmp_path: Path) -> None:
    install_clients(empty_environment)
    package = shutil.copytree(ROOT / "examples/plugins/klamm-extras", tmp_path / "klamm-extras")
    done = run(empty_environment, "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=package)
    assert done.returncode == 0, done.stdout + done.stderr
