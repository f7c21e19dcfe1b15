"""Which publisher serves a lake's path, by the scheme of its URI."""

from __future__ import annotations

from urllib.parse import urlsplit

from klamm.core.errors import ConfigError
from klamm.hadoop.publishing.local import LocalPublisher
from klamm.hadoop.publishing.seam import Publisher


def publisher_for(path: str) -> Publisher:
    """`ConfigError` in one line for a scheme that has not passed the contract."""
    scheme = urlsplit(path).scheme
    if scheme in ("", "file"):
        return LocalPublisher()
    raise ConfigError(
        f"a lake on {scheme}: ({path}) is refused until {scheme}: passes the publishing contract; use file:///…"
    )
