"""The configuration of a producer, with Kafka's names."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, model_validator

from ..choice import PluginChoices
from ..section import INT_MAX, ConfigType, Int, Long, key, wrong_key
from .client import ClientConfig


def _acks(value: Any) -> Any:
    known = {"all": -1, "-1": -1, "0": 0, "1": 1}
    if isinstance(value, bool) or str(value) not in known:
        raise ValueError(f"should be all, 1 or 0, got {value!r}")
    return known[str(value)]


def _partitioner(value: Any) -> Any:
    """Checks the form only. The producer imports it: a command does not have the program's import path."""
    if isinstance(value, str) and value != "murmur2" and not all(value.partition(":")):
        raise ValueError(f"should be murmur2 or module:callable, got {value!r}")
    return value


Acks = Annotated[int, BeforeValidator(_acks), ConfigType.STRING]


class ProducerConfig(ClientConfig):
    """One producer. Times in ms, sizes in bytes."""

    acks: Acks = key("all", "The replicas that must have a batch: all (-1) in-sync replicas, 1: the leader, 0: none.")
    compression_type: str = key("none", "The codec of batches: none, gzip, snappy, lz4, zstd or a plugin's.")
    linger_ms: Long = key(5, "Time that a batch waits for more records.", ge=0)
    batch_size: Int = key(16_384, "The size at which a batch is full and is sent.", ge=0)
    buffer_memory: Long = key(33_554_432, "Bytes of records that may wait to be sent.", ge=1)
    max_block_ms: Long = key(
        60_000, "Time that `send` waits for space in the buffer or for metadata before it raises.", ge=0
    )
    max_request_size: Int = key(1_048_576, "The largest request, and the largest record.", ge=1)
    delivery_timeout_ms: Int = key(
        120_000, "Time without an acknowledgement after which the record's future raises.", ge=1
    )
    retries: Int = key(INT_MAX, "Attempts after the first, within delivery.timeout.ms.", ge=0)
    max_in_flight_requests_per_connection: Int = key(5, "Requests to one broker that wait for a response.", ge=1)
    enable_idempotence: bool = key(True, "Whether retries can neither duplicate nor reorder records.")
    partitioner: Annotated[str, BeforeValidator(_partitioner)] = key(
        "murmur2", "murmur2 (Kafka's) or module:callable of your own."
    )
    interceptors: PluginChoices = key((), "Producer interceptors, in the order in which they are called.")

    @model_validator(mode="before")
    @classmethod
    def _idempotence_where_possible(cls, given: Any) -> Any:
        """Disables idempotence, as Kafka does, if it is not set and another key excludes it."""
        if not isinstance(given, dict) or {"enable.idempotence", "enable_idempotence"} & set(given):
            return given
        acks, retries = given.get("acks", "all"), given.get("retries", 1)
        if str(acks) not in ("all", "-1") or str(retries) == "0":
            return {**given, "enable.idempotence": False}
        return given

    @model_validator(mode="after")
    def _consistent(self) -> ProducerConfig:
        if self.enable_idempotence:
            if self.acks != -1:
                raise wrong_key("enable.idempotence", "needs acks: all")
            if self.retries == 0:
                raise wrong_key("enable.idempotence", "needs retries above 0")
            if self.max_in_flight_requests_per_connection > 5:
                raise wrong_key("enable.idempotence", "needs max.in.flight.requests.per.connection up to 5")
        least = self.linger_ms + self.request_timeout_ms
        if self.delivery_timeout_ms < least:
            raise wrong_key(
                "delivery.timeout.ms",
                f"{self.delivery_timeout_ms} is below linger.ms + request.timeout.ms = {self.linger_ms} + "
                f"{self.request_timeout_ms} = {least}; raise it, or lower request.timeout.ms",
            )
        return self
