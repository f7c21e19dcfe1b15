"""The context of a service beside the broker: the logs that the broker leads, the offset store, the cluster's
topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar
from uuid import UUID

from ...errors import BrokerError, ErrorCode
from ...interfaces.offsets import OffsetStore
from ...interfaces.service import ServiceRead
from ...log.errors import OffsetOutOfRangeError
from ...log.partition_log import ReadIsolation
from ...records.codecs import CodecTable
from ...records.partition import TopicPartition
from ..partitions import LedPartition
from ..services import Services

T = TypeVar("T")


class LocalBrokerContext:
    """`klamm.core.interfaces.service.BrokerContext`. Its methods block; call them from any thread but the event
    loop's.
    """

    def __init__(self, services: Services, offsets: OffsetStore, address: tuple[str, int]) -> None:
        self._services = services
        self._loop = asyncio.get_running_loop()
        self.host, port = address
        self.bootstrap_servers = f"{self.host}:{port}"
        self.offsets = offsets

    @property
    def codecs(self) -> CodecTable:
        return self._services.codecs

    def partitions(self) -> Mapping[TopicPartition, UUID | None]:
        return {led.name: led.log.topic_id for led in list(self._services.partitions)}

    def read(self, partition: TopicPartition, offset: int, max_bytes: int) -> ServiceRead:
        led = self._services.led(partition.topic, partition.partition)
        if not isinstance(led, LedPartition):
            raise BrokerError(led, f"{partition} is not led by broker {self._services.broker_id}")
        try:
            found = led.log.read(offset, max_bytes, isolation=ReadIsolation.HIGH_WATERMARK)
        except OffsetOutOfRangeError:
            log = led.log
            return ServiceRead(b"", log.high_watermark, log.log_start_offset, log.topic_id, max(led.leader_epoch, 0))
        return ServiceRead(
            found.data, found.high_watermark, found.log_start_offset, led.log.topic_id, max(led.leader_epoch, 0)
        )

    def epoch_end(self, partition: TopicPartition, leader_epoch: int) -> int:
        led = self._services.led(partition.topic, partition.partition)
        if not isinstance(led, LedPartition):
            raise BrokerError(led, f"{partition} is not led by broker {self._services.broker_id}")
        return led.log.end_offset_for_epoch(leader_epoch)[1]

    def ensure_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        if name in self._services.image.topics:
            return
        try:
            self._services.cluster.create_topic(name, partitions, 1, configs)
        except BrokerError as error:
            if error.code is not ErrorCode.topic_already_exists:
                raise
        self._on_loop(self._services.leadership.refresh)

    def _on_loop(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()
