"""Klamm: a publish-subscribe log that every Kafka client can use.

`Producer` and `Consumer` are the typed clients; they are imported on first use, so that `import klamm` stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from klamm.core.client.consumer.consumer import Consumer
    from klamm.core.client.producer.producer import Producer

__all__ = ["Consumer", "Producer", "__version__"]
__version__ = "0.1.0"

_LAZY = {"Producer": "klamm.core.client.producer.producer", "Consumer": "klamm.core.client.consumer.consumer"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'klamm' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
