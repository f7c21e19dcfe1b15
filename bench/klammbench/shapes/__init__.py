"""The shapes by letter, in the order that they run in."""

from __future__ import annotations

from collections.abc import Sequence

from klammbench.shapes import audit, catchup, clients, footprint, paper, requests, throughput
from klammbench.shapes.base import Shape
from klammbench.shapes.growth import growth
from klammbench.shapes.latency import latency

_ORDER: Sequence[Shape] = (throughput, requests, latency, clients, audit, paper, catchup, footprint, growth)
"""Those first that leave the same systems running: what is warm stays so."""

SHARES: dict[str, float] = {"b": 32, "c": 6, "d": 9, "clients": 13, "audit": 8, "a": 13, "e": 9, "f": 8, "g": 17}
"""Of the time of a whole run; what one leaves is for those after it."""

SHAPES: dict[str, Shape] = {shape.NAME: shape for shape in _ORDER}
