"""How a cluster announces which of its topics are mirrors (docs/mirror.md, M11)."""

from __future__ import annotations

from typing import Final

ORIGIN: Final = "klamm.mirror.of"
"""A key that DescribeConfigs answers for a mirror topic if it is asked for by name: the id of the cluster that the
topic is copied from. Other brokers than Klamm's ignore it."""
