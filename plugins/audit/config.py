"""The `audit` section of the YAML file."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator

from klamm.core.config.sections.topic_settings import check_names, name_problem
from klamm.plugin import Int, Long, Names, Section, key

from .event import CONSUMER, HADOOP, MIRROR


def _topic(name: str) -> str:
    problem = name_problem(name)
    if problem:
        raise ValueError(problem)
    return name


def _expected(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        expected_tier(name)
    return names


def expected_tier(text: str) -> tuple[str, str]:
    """Returns (tier, owner) of `consumer/GROUP`, `hadoop/SINK` or `mirror`; raises `ValueError` if it is none."""
    if text == MIRROR:
        return MIRROR, ""
    tier, _, owner = text.partition("/")
    if tier not in (CONSUMER, HADOOP) or not owner:
        raise ValueError(f"expected consumer/GROUP, hadoop/SINK or mirror, got {text!r}")
    return tier, owner


class AuditConfig(Section):
    """The built-in audit. All processes of a cluster should have the same."""

    topic: Annotated[str, AfterValidator(_topic)] = key("__klamm_audit", "The audit topic; it is itself not audited.")
    topics: Annotated[Names, AfterValidator(check_names)] = key(
        (), "The topics that are audited; all but the internal ones (with _ in front) when empty."
    )
    window_minutes: Int = key(10, "The length of a window of record time.", ge=1, le=1440)
    expect: Annotated[Names, AfterValidator(_expected)] = key(
        (), "Tiers that must have counted besides producer and broker: consumer/GROUP, hadoop/SINK, mirror."
    )
    mirrored_topics: Annotated[Names, AfterValidator(check_names)] = key(
        (), "Mirrors, here, of the audit topics of other clusters: their events are read too. They are not audited."
    )
    publish_interval_ms: Int = key(10_000, "Time between two events of a producer.", ge=10)
    broker_interval_ms: Int = key(1_000, "Pause of the broker tier after it has caught up.", ge=10)
    watermark_interval_ms: Int = key(
        -1,
        "Time between two computations of the watermarks for a broker's metrics, which keeps all events in its memory; "
        "-1: none.",
        ge=-1,
    )
    allowed_lateness_ms: Int = key(
        600_000,
        "How much later than its timestamp a record may be acknowledged; the watermark stays so far behind.",
        ge=0,
    )
    partitions: Int = key(1, "Partitions of the audit topic at creation.", ge=1)
    retention_ms: Long = key(-1, "How long the audit topic keeps events; -1: without limit.", ge=-1)

    pages_port: Int = key(
        -1,
        "Port of the audit's pages beside each broker, which keeps all events in its memory; 0: a free port; -1: no "
        "pages.",
        ge=-1,
        le=65535,
    )
    pages_host: str = key("127.0.0.1", "Address of the pages, which have no authentication.")
    pages_max_events: Int = key(
        1_000_000, "Events of the audit topic that the pages keep, about 1 KB each; above it they show an error.", ge=1
    )

    def audits(self, topic: str) -> bool:
        if topic == self.topic or topic in self.mirrored_topics:
            return False
        return topic in self.topics if self.topics else not topic.startswith("_")  # excludes _schemas, too

    def topic_configs(self) -> dict[str, Any]:
        """Returns the configuration with which the audit topic is created: an event of years of windows is some
        megabytes. The broker sets the timestamps, so that a producer whose clock is wrong does not look dead, or alive.
        """
        return {
            "retention.ms": str(self.retention_ms),
            "max.message.bytes": str(16 * 1024 * 1024),
            "message.timestamp.type": "LogAppendTime",
        }
