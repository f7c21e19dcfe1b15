"""Klamm: a publish-subscribe log that every Kafka client can use.

`Producer` and `Consumer` are the typed clients, `ClusterClient` administers topics and groups, `errors` has what they
raise, `plugin` what a plugin is written with. Names are imported on first use, so that `import klamm` stays cheap.
Modules and names that are not in `__all__` here, in `klamm.errors` or in `klamm.plugin` are internal: they may change
in any release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm._lazy import lazy_attributes

if TYPE_CHECKING:
    from klamm import errors as errors
    from klamm import plugin as plugin
    from klamm.core.client.cluster_client import ClusterClient, NewTopic
    from klamm.core.client.consumer.consumer import Consumer
    from klamm.core.client.producer.producer import Producer
    from klamm.core.client.producer.record_future import RecordFuture
    from klamm.core.config.settings import Settings, load_settings
    from klamm.core.hookspecs import hookimpl
    from klamm.core.records.partition import TopicPartition
    from klamm.core.records.record import ConsumerRecord, Headers, ProducerRecord, RecordMetadata

__all__ = [
    "ClusterClient",
    "Consumer",
    "ConsumerRecord",
    "Headers",
    "NewTopic",
    "Producer",
    "ProducerRecord",
    "RecordFuture",
    "RecordMetadata",
    "Settings",
    "TopicPartition",
    "__version__",
    "errors",
    "hookimpl",
    "load_settings",
    "plugin",
]
__version__ = "0.1.0"

if not TYPE_CHECKING:  # a type checker reads the imports above, and so reports a name that does not exist
    __getattr__ = lazy_attributes(
        __name__,
        {
            "klamm.core.client.cluster_client": ("ClusterClient", "NewTopic"),
            "klamm.core.client.consumer.consumer": ("Consumer",),
            "klamm.core.client.producer.producer": ("Producer",),
            "klamm.core.client.producer.record_future": ("RecordFuture",),
            "klamm.core.config.settings": ("Settings", "load_settings"),
            "klamm.core.hookspecs": ("hookimpl",),
            "klamm.core.records.partition": ("TopicPartition",),
            "klamm.core.records.record": ("ConsumerRecord", "Headers", "ProducerRecord", "RecordMetadata"),
            "klamm.errors": ("errors",),
            "klamm.plugin": ("plugin",),
        },
    )
