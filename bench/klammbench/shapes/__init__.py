"""The shapes by letter, in the order that they run in."""

from __future__ import annotations

from klammbench.shapes import requests, throughput
from klammbench.shapes.base import Shape

SHAPES: dict[str, Shape] = {shape.NAME: shape for shape in (throughput, requests)}
