"""The shapes by letter, in the order in which they run."""

from __future__ import annotations

from collections.abc import Sequence

from klammbench.shapes import audit, catchup, clients, footprint, paper, requests, throughput
from klammbench.shapes.base import Shape
from klammbench.shapes.cluster import three_brokers
from klammbench.shapes.growth import growth
from klammbench.shapes.latency import latency

_ORDER: Sequence[Shape] = (
    throughput, requests, latency, clients, audit, paper, catchup, footprint, growth, three_brokers,
)  # fmt: skip
"""Shapes that use the same systems stand next to each other, so that warm systems stay up."""

SHARES: dict[str, float] = {
    "b": 32,
    "c": 6,
    "d": 9,
    "clients": 13,
    "audit": 8,
    "a": 13,
    "e": 9,
    "f": 8,
    "g": 17,
    "h": 40,
}
"""Each shape's share of the time of a whole run; time that one does not use goes to those after it."""

SHAPES: dict[str, Shape] = {shape.NAME: shape for shape in _ORDER}
