"""What tests of other projects are written with: a real broker (`KlammBroker`), pytest fixtures, and contract suites.

`klamm.testing.pytest_plugin` has the fixtures; pytest finds it by its entry point. `klamm.testing.contracts` has a
suite for each interface that a plugin implements. `KlammBroker` imports nothing but the standard library: the broker is
a process of its own, and the broker's modules are imported there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm._lazy import lazy_attributes

if TYPE_CHECKING:
    from klamm.testing.broker import BrokerControlError, KlammBroker, StoredRecord

__all__ = ["BrokerControlError", "KlammBroker", "StoredRecord"]

if not TYPE_CHECKING:
    __getattr__ = lazy_attributes(
        __name__, {"klamm.testing.broker": ("BrokerControlError", "KlammBroker", "StoredRecord")}
    )
