"""Kafka's topic configs that have no effect here. They are accepted with Kafka's checks, and shown, so that tools that
set them work unchanged.

Klamm does not preallocate segments, rolls segments without jitter, and has neither tiered storage nor share groups.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BeforeValidator

from ..section import ConfigType, Int, Long, Section, key

_NO_EFFECT: Final = "No effect here. In Kafka: "


def _boolean(value: Any) -> Any:
    """Parses a boolean as Kafka does: pydantic also accepts yes, on and 1."""
    if not isinstance(value, str):
        return value
    text = value.strip().lower()
    if text not in ("true", "false"):
        raise ValueError(f"should be true or false, got {value!r}")
    return text == "true"


def _gzip_level(value: Any) -> Any:
    if str(value).strip() == "0":
        raise ValueError("should be 1 to 9, or -1 for gzip's own default, got 0")
    return value


def _never(value: Any) -> Any:
    if _boolean(value) is True:
        raise ValueError("cannot be true: there is no tiered storage")
    return value


Boolean = Annotated[bool, BeforeValidator(_boolean), ConfigType.BOOLEAN]
Never = Annotated[bool, BeforeValidator(_boolean), BeforeValidator(_never), ConfigType.BOOLEAN]
GzipLevel = Annotated[Int, BeforeValidator(_gzip_level)]


class IgnoredTopicConfig(Section):
    """Kafka's names, types, bounds and defaults."""

    compression_gzip_level: GzipLevel = key(-1, f"{_NO_EFFECT}level of compression.type=gzip.", ge=-1, le=9)
    compression_lz4_level: Int = key(9, f"{_NO_EFFECT}level of compression.type=lz4.", ge=1, le=17)
    compression_zstd_level: Int = key(3, f"{_NO_EFFECT}level of compression.type=zstd.", ge=-131_072, le=22)
    errors_deadletterqueue_group_enable: Boolean = key(
        False, f"{_NO_EFFECT}share groups may write records here that cannot be processed."
    )
    local_retention_bytes: Long = key(-2, f"{_NO_EFFECT}as retention.bytes, before tiered storage.", ge=-2)
    local_retention_ms: Long = key(-2, f"{_NO_EFFECT}as retention.ms, before tiered storage.", ge=-2)
    max_decompressed_message_bytes: Int = key(
        2_147_483_639,
        "No effect here: decompressed.max.bytes limits a batch. In Kafka: the largest record, decompressed.",
        ge=1,
        le=2_147_483_639,
    )
    preallocate: Boolean = key(False, f"{_NO_EFFECT}a segment's file is allocated when it is created.")
    remote_copy_lag_bytes: Long = key(-1, f"{_NO_EFFECT}size after which a segment goes to tiered storage.", ge=-1)
    remote_copy_lag_ms: Long = key(0, f"{_NO_EFFECT}age after which a segment goes to tiered storage.", ge=-1)
    remote_log_copy_disable: Boolean = key(False, f"{_NO_EFFECT}no more segments go to tiered storage.")
    remote_log_delete_on_disable: Boolean = key(False, f"{_NO_EFFECT}disabling tiered storage deletes the data in it.")
    remote_storage_enable: Never = key(False, "Tiered storage, which Klamm does not have: only false is accepted.")
    segment_jitter_ms: Long = key(0, f"{_NO_EFFECT}random time by which a segment is rolled earlier.", ge=0)
