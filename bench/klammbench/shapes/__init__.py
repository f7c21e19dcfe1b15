"""The shapes by letter, in the order that they run in."""

from __future__ import annotations

from klammbench.shapes import paper, requests, throughput
from klammbench.shapes.base import Shape
from klammbench.shapes.latency import latency

SHAPES: dict[str, Shape] = {shape.NAME: shape for shape in (paper, throughput, requests, latency)}
