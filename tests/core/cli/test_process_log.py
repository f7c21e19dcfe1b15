"""The commands that may run long obey the section `log` where the file has it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from klammtest.broker import ENVIRONMENT, KLAMM

CHATTY = """
import logging
from klamm.core.errors import KlammError
from klamm.core.hookspecs import hookimpl
from klamm.core.interfaces.provider import Provider


def made(_):
    log = logging.getLogger("chatty.codec")
    log.debug("seen by the curious")
    log.info("a codec is made")
    log.warning("and ends it", extra={"event": "end"})
    raise KlammError("there is no such codec today")


@hookimpl
def klamm_codecs():
    return [Provider("chatty", made)]
"""
COMMANDS = (["sink", "table", "--once"], ["load", "lake"], ["audit"])


def said(folder: Path, command: list[str], **sections: Any) -> list[str]:
    (folder / "chatty_plugin.py").write_text(CHATTY)
    config = {
        "coordination": {"plugin": "embedded", "path": "./coordination.db"},
        "plugins": {"modules": ["chatty_plugin"]},
        "audit": {"plugin": "klamm", "topics": ["t"]},
        "sinks": {
            "table": {"plugin": "files", "topics": ["t"], "path": "./table"},
            "lake": {"plugin": "hadoop", "topics": ["t"], "path": f"file:{folder}/lake"},
        },
        **sections,
    }
    (folder / "klamm.yaml").write_text(yaml.safe_dump(config))
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{folder}:{ENVIRONMENT['PYTHONPATH']}"}
    done = subprocess.run(
        [KLAMM, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1, done.stderr
    return done.stderr.splitlines()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_what_the_file_says(tmp_path: Path, command: list[str]) -> None:
    lines = said(tmp_path, command, log={"format": "json", "levels": {"chatty": "DEBUG"}})
    mine = [json.loads(line) for line in lines if "chatty.codec" in line]
    assert [(line["level"], line["message"]) for line in mine] == [
        ("DEBUG", "seen by the curious"),
        ("INFO", "a codec is made"),
        ("WARNING", "and ends it"),
    ]
    assert mine[-1]["event"] == "end"
    assert "klamm: " in lines[-1]


def test_warnings_only_where_the_file_says_nothing(tmp_path: Path) -> None:
    lines = said(tmp_path, COMMANDS[0])
    assert lines[0] == "and ends it"
    assert len(lines) == 2


def test_only_what_is_worth_it(tmp_path: Path) -> None:
    lines = said(tmp_path, COMMANDS[0], log={"level": "WARNING"})
    assert [line.partition(" WARNING ")[2] for line in lines[:-1]] == ["chatty.codec: and ends it"]
