"""Klamm finds this module by its entry point and calls the hooks that it implements, once, at start."""

from __future__ import annotations

from collections.abc import Iterable

from klamm.plugin import Codec, Provider, Sink, hookimpl
from klamm_extras.sqlite_sink import SqliteConfig, SqliteSink
from klamm_extras.xz import XzCodec, XzConfig


@hookimpl
def klamm_codecs() -> Iterable[Provider[[], Codec]]:
    """The codec `xz`."""
    return [Provider("xz", XzCodec, XzConfig, "xz, by the standard library's lzma")]


@hookimpl
def klamm_sinks() -> Iterable[Provider[[], Sink]]:
    """The sink `sqlite`."""
    return [Provider("sqlite", SqliteSink, SqliteConfig, "a table of an SQLite file, each record once")]
