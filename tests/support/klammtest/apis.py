"""The versions of each API that the broker serves, and those that it advertises."""

from __future__ import annotations

from klamm.core.broker.handlers.table import APIS, advertised

SERVED = {api.key: api.versions for api in APIS.values()}
ADVERTISED = advertised()
