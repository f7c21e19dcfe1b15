"""The plugins on `docs/plugins.md`: each in under 25 lines of code, loaded as `plugins.modules` loads them, and used.

`test_examples.py` runs the page itself, with a broker.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from klamm.core.errors import CorruptRecordError, KlammError
from klamm.core.interfaces.codec import DecompressionBombError
from klamm.core.interfaces.security.authorizer import AclOperation, ResourceType
from klamm.core.plugins import PluginHost, plugin_host
from klamm.core.records.record import ConsumerRecord, Record

PAGE = Path(__file__).resolve().parents[2] / "docs" / "plugins.md"
FILES = dict(re.findall(r"```python title=(\w+)\.py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))


def use_please(host: PluginHost, folder: Path) -> None:
    validator = host.topic_validators.create("please", {"topics": ["wishes"]})
    assert (validator.applies_to("wishes", {}), validator.applies_to("others", {})) == (
        True,
        False,
    )
    validator.validate("wishes", 0, [Record(0, 1, None, b"a pony, please", ())])
    with pytest.raises(KlammError, match="record 1 does not say please"):
        validator.validate("wishes", 0, [Record(1, 1, None, b"a pony", ())])


def use_bzip2(host: PluginHost, folder: Path) -> None:
    codec = host.codecs.create("bzip2")
    packed = codec.compress(b"gorge" * 100)
    assert codec.decompress(packed, 500) == b"gorge" * 100
    with pytest.raises(DecompressionBombError):
        codec.decompress(packed, 499)
    with pytest.raises(CorruptRecordError):
        codec.decompress(b"gorge", 500)


def use_appended(host: PluginHost, folder: Path) -> None:
    sink: Any = host.sinks.create("appended", {"path": str(folder / "lines")})
    sink.open()
    sink.write([ConsumerRecord("t", 0, i, 1, None, f"v{i}".encode(), ()) for i in range(2)])
    sink.flush()
    assert (folder / "lines").read_bytes() == b"v0\nv1\n"
    sink.close()
    sink.close()


def use_uptime(host: PluginHost, folder: Path) -> None:
    context: Any = object()
    service = host.services.create("uptime", None, context)
    assert service.health() == "not started"
    service.start()
    assert service.health() is None
    [metric] = service.metrics()
    assert metric.value >= 0
    service.stop()


def use_readers(host: PluginHost, folder: Path) -> None:
    authorizer, context = host.authorizers.create("read-only"), Caller()
    assert authorizer.authorize(context, AclOperation.READ, ResourceType.TOPIC, "t")
    assert not authorizer.authorize(context, AclOperation.WRITE, ResourceType.TOPIC, "t")


class Caller:
    """An anonymous client."""

    principal, listener, client_address, client_id = "User:ANONYMOUS", "PLAINTEXT", "127.0.0.1:1", ""


USES: dict[str, Callable[[PluginHost, Path], None]] = {
    "please": use_please,
    "bzip2": use_bzip2,
    "appended": use_appended,
    "uptime": use_uptime,
    "readers": use_readers,
}


def test_all_are_used() -> None:
    assert set(FILES) == set(USES)


@pytest.mark.parametrize("name", USES)
def test_a_plugin_of_the_page(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{name}.py").write_text(FILES[name])
    monkeypatch.syspath_prepend(tmp_path)
    try:
        USES[name](plugin_host((name,)), tmp_path)
    finally:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["please", "bzip2", "appended"])
def test_a_plugin_takes_under_25_lines(name: str) -> None:
    assert sum(bool(line.strip()) for line in FILES[name].splitlines()) < 25
