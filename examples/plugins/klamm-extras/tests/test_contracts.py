"""Klamm's suites, on the codec and the sink of this package: `python -m pytest` in its folder."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from klamm_extras.sqlite_sink import SqliteConfig, SqliteSink
from klamm_extras.xz import XzCodec, XzConfig

from klamm.plugin import Codec, Sink
from klamm.testing.contracts import CodecContract, ExactlyOnceSinkContract
from klamm.testing.contracts.sink import SinkRow


class TestXz(CodecContract):
    @pytest.fixture
    def codec(self) -> Codec:
        return XzCodec(XzConfig())


class TestSqlite(ExactlyOnceSinkContract):
    def make_sink(self, place: Path) -> Sink:
        return SqliteSink(SqliteConfig(path=place))

    def rows(self, place: Path) -> list[SinkRow]:
        database = sqlite3.connect(place)
        rows = database.execute('SELECT topic, partition, "offset", value FROM records ORDER BY 1, 2, 3').fetchall()
        database.close()
        return [(t, p, o, v.decode() if isinstance(v, bytes) else v) for t, p, o, v in rows]
