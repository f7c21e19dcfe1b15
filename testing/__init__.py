"""What tests of other projects are written with: a real broker (`KlammBroker`), pytest fixtures, and contract suites.

`klamm.testing.pytest_plugin` has the fixtures; pytest finds it by its entry point. `klamm.testing.contracts` has a
suite for each interface that a plugin implements. Nothing but the standard library is imported here: the broker is a
process of its own, and the broker's modules are imported there.
"""

from __future__ import annotations

from klamm.testing.broker import BrokerControlError, KlammBroker, StoredRecord

__all__ = ["BrokerControlError", "KlammBroker", "StoredRecord"]
