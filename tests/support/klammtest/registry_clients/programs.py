"""The clients' programs: how each is built and started."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from klamm.core.errors import ConfigError
from klamm.core.java import cache_folder
from klammtest.confluent_java import JARS

SOURCES: Final = Path(__file__).parents[3] / "clients" / "registry"
BUILD_S: Final = 3600
Command = list[str]


@dataclass(frozen=True)
class Client:
    """`language` counts for who reads whom. `command` builds the program, if it must be, and returns its command;
    raises `ConfigError` where a tool is missing or the build fails."""

    name: str
    language: str
    command: Callable[[], Command]
    formats: tuple[str, ...] = ("avro", "json", "protobuf")


class NotBuiltError(ConfigError):
    """A tool is missing, or the build failed."""


def _tool(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path=f"{Path.home()}/.cargo/bin:/usr/local/go/bin")
    if found is None:
        raise NotBuiltError(f"{name} is not installed")
    return found


def _built(language: str, command: Command, made: str) -> Path:
    """Runs a build in a copy of the sources, in the cache directory, unless that was done; returns the folder. What the
    tools write beside the sources stays out of the repository."""
    source = SOURCES / language
    files = sorted(path for path in source.rglob("*") if path.is_file())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    folder = cache_folder() / "registry-clients" / language
    stamp = folder / "sources.sha256"
    if stamp.is_file() and stamp.read_text() == digest and (folder / made).exists():
        return folder
    stamp.unlink(missing_ok=True)
    for path in files:
        target = folder / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    print(f"building the {language} program in {folder}", flush=True)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BUILD_S, check=False)
    if done.returncode:
        raise NotBuiltError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-2000:]}")
    stamp.write_text(digest)
    return folder


def _python() -> Command:
    return [sys.executable, "-W", "ignore", str(SOURCES / "python" / "registry_client.py")]


def _java() -> Command:
    jars = f"{JARS.find()}/*"
    folder = _built("java", [_tool("javac"), "-cp", jars, "-d", ".", "RegistryClient.java"], "RegistryClient.class")
    return [_tool("java"), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}:{folder}", "RegistryClient"]


def _node(file: str) -> Callable[[], Command]:
    def command() -> Command:
        install = [_tool("npm"), "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"]
        return [_tool("node"), "--no-warnings", str(_built("js", install, "node_modules") / file)]

    return command


def _go() -> Command:
    build = f"'{_tool('go')}' mod tidy && '{_tool('go')}' build -p 1 -o registry-client ."
    return [str(_built("go", ["sh", "-c", build], "registry-client") / "registry-client")]


def _rust() -> Command:
    folder = _built("rust", [_tool("cargo"), "build", "-j", "1"], "target/debug/registry-client")
    return [str(folder / "target" / "debug" / "registry-client")]


CLIENTS: Final = {
    client.name: client
    for client in (
        Client("python", "Python", _python),
        Client("python-async", "Python", _python),
        Client("java", "Java", _java, ("avro",)),
        Client("kafkajs", "JavaScript", _node("kafkajs.js")),
        Client("confluentinc", "JavaScript", _node("confluentinc.js")),
        Client("franz-go", "Go", _go),
        Client("srclient", "Go", _go, ("avro", "json")),
        Client("rust", "Rust", _rust),
    )
}
