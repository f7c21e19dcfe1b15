"""Clients of a cluster are made in one place, with what their source says."""

from __future__ import annotations

import re
from pathlib import Path

import klamm
from klamm.core.client.factory import ClusterAccess, open_client
from klamm.core.config.settings import load_settings
from klamm.core.records.codecs import CodecTable

ROOT = Path(klamm.__file__).parent


def test_no_other_module_makes_a_cluster_client() -> None:
    makers = {
        str(path.relative_to(ROOT))
        for folder in ("core", "plugins", "schemas", "hadoop")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"(?<!class )\bClusterClient\(", path.read_text(encoding="utf-8"))
    }
    assert makers == {"core/client/factory.py"}


def test_a_client_has_the_servers_of_its_source_and_the_name_of_its_purpose() -> None:
    settings = load_settings({"producer": {"bootstrap.servers": "one:1"}, "consumer": {"bootstrap.servers": "two:2"}})
    for access in (settings, ClusterAccess("one:1", CodecTable())):
        with open_client(access, "audit") as client:
            assert [str(address) for address in client.bootstrap] == ["one:1"]
            assert client.client_id == "klamm-audit"
    with open_client(settings, "consumer", bootstrap_servers="two:2", client_id="mine") as client:
        assert [str(address) for address in client.bootstrap] == ["two:2"]
        assert client.client_id == "mine"
