"""What `make registry-clients` does without a tool, and that its programs pin what they need and leave no lock file.

That confluent-kafka's clients work is tested in tests/schemas/service.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from klammtest.registry_clients.__main__ import built
from klammtest.registry_clients.orders import FORMATS, formats_of, record_of
from klammtest.registry_clients.programs import CLIENTS, SOURCES


def test_a_client_without_its_tools_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    assert list(built(["python", "franz-go", "kafkajs"])) == ["python"]
    assert capsys.readouterr().out.splitlines() == [
        "client franz-go not run: go is not installed",
        "client kafkajs not run: npm is not installed",
    ]


def test_each_program_is_there_and_pinned() -> None:
    files = {str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*") if path.is_file()}
    assert {"python/registry_client.py", "java/RegistryClient.java", "js/package.json", "go/go.mod"} <= files
    assert not [name for name in files if re.search(r"lock|go\.sum|\.npmrc", name)]
    pinned = json.loads((SOURCES / "js" / "package.json").read_text())["dependencies"]
    assert [version for version in pinned.values() if not re.fullmatch(r"[\d.]+", version)] == []


def test_orders_have_each_clients_formats() -> None:
    for client in CLIENTS.values():
        assert set(client.formats) <= set(FORMATS) == set(formats_of(client.name))
        assert client.name in record_of(client.name)["note"]
