"""Planted anomalies, which the demo must find. Each is made below all counting and comparing."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from struct import pack_into

from crc32c import crc32c

from klamm import Producer, load_settings
from klamm.core.records.header import CONTROL, CRC_AT, CRC_FROM, iter_headers

from ..flights import TOPIC, flight_key, load_flights, planted, timestamp_ms
from ..processes import DemoError
from ..workspace import Workspace

_ATTRIBUTES_AT = 21


class Plant(StrEnum):
    NONE = "none"
    LOST = "lost"
    DOUBLED = "doubled"


def lose_one(workspace: Workspace, limit: int) -> str:
    """Sends one flight as a producer does, and lets all brokers lose it after they have acknowledged it: in their
    segments, the batch is changed so that no reader sees it. Must run before any read; returns the flight's key."""
    flight = planted(load_flights(limit))
    key = flight_key(flight)
    with Producer(workspace.config) as producer:
        stored = producer.send(TOPIC, flight, key=key.encode(), timestamp_ms=timestamp_ms(flight)).result(30)
        for log in workspace.broker_logs:
            [segment] = (log / f"{TOPIC}-{stored.partition}").glob("*.log")
            hide_last_batch(segment)
    workspace.acknowledged("planted").write_text(key + "\n")
    return key


def double_one(workspace: Workspace, limit: int) -> str:
    """Sends one flight a second time, like a client that neither counts nor is idempotent; returns its key."""
    flight = planted(load_flights(limit))
    key = flight_key(flight)
    with Producer(load_settings(workspace.config).with_(audit=None)) as producer:
        producer.send(TOPIC, flight, key=key.encode(), timestamp_ms=timestamp_ms(flight)).result(30)
    return key


def hide_last_batch(segment: Path) -> None:
    """Turns the last batch of a segment into a control batch, which readers skip, with a correct CRC."""
    data = bytearray(segment.read_bytes())
    batches = list(iter_headers(data))
    if not batches:
        raise DemoError(f"{segment} holds no batch to plant an anomaly in")
    at, header = batches[-1]
    pack_into(">h", data, at + _ATTRIBUTES_AT, header.attributes | CONTROL)
    pack_into(">I", data, at + CRC_AT, crc32c(data[at + CRC_FROM : at + header.size]))
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(data[at : at + header.size])
