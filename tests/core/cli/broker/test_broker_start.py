"""A broker whose session ends while it starts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from klamm.core.broker.server import Broker
from klamm.core.cli.broker.commands import start_broker
from klamm.core.cluster.cluster import Cluster
from klamm.core.config.settings import Settings, load_settings
from klamm.core.interfaces.coordination import SessionExpiredError
from klammtest.ports import free_port

_note_start = Broker._note_start


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    file = tmp_path / "klamm.yaml"
    file.write_text(
        f"broker: {{listeners: 'PLAINTEXT://127.0.0.1:{free_port()}', log.dirs: data}}\n"
        "coordination: {plugin: embedded, path: coordination.db}\n"
    )
    return load_settings(file)


@pytest.mark.parametrize("ends", [1, 4])
def test_it_starts_again(settings: Settings, caplog: pytest.LogCaptureFixture, ends: int) -> None:
    left = ends

    async def expire(broker: Broker, *parts: Any) -> None:
        nonlocal left
        if left:
            left -= 1
            raise SessionExpiredError("/brokers is not accessible: the session has expired")
        await _note_start(broker, *parts)

    async def run() -> None:
        broker = await start_broker(lambda: Broker(settings))
        assert len(broker.advertised) == 1
        await broker.stop()

    with patch.object(Broker, "_note_start", expire):
        asyncio.run(run())
    assert "will retry" not in caplog.text, "nothing of the earlier ones goes on"
    assert caplog.text.count("the broker starts again: /brokers is not accessible") == ends


def test_it_gives_up(settings: Settings) -> None:
    tried = 0

    def expire(_: Cluster) -> None:
        nonlocal tried
        tried += 1
        raise SessionExpiredError("planted")

    async def run() -> Any:
        await start_broker(lambda: Broker(settings))

    with patch.object(Cluster, "register", expire), pytest.raises(SessionExpiredError, match="planted"):
        asyncio.run(run())
    assert tried == 5
