"""Finalized feature levels (KIP-584): who may register, what the controller finalizes by itself, and which updates it
makes (UpdateFeatures)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from ..errors import BrokerError, ErrorCode
from ..interfaces.coordination import Set
from ..records.partition import counted, some_of
from .change_writer import Plan
from .feature_levels import NONE, REPLICATION, SUPPORTED, FinalizedFeatures
from .image import ClusterImage
from .tree import paths
from .tree.nodes import FeaturesNode


class UpgradeType(IntEnum):
    """UpdateFeatures' kinds of update."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """The level that an administrator wants; `kind` is a value of `UpgradeType`, or a number that is none."""

    name: str
    level: int
    kind: int


def check_supported(broker_id: int, finalized: FinalizedFeatures) -> None:
    """Raises `BrokerError` UNSUPPORTED_VERSION if this release does not support a level that is in use."""
    for name, level in sorted(finalized.levels.items()):
        supported = SUPPORTED.get(name, NONE)
        if not supported.lowest <= level <= supported.highest:
            raise BrokerError(
                ErrorCode.unsupported_version,
                f"the cluster uses level {level} of the feature {name}, but broker {broker_id} supports "
                f"{supported.lowest} to {supported.highest}: run a release that supports it",
            )


def newest_levels(image: ClusterImage) -> Plan | None:
    """Returns the change by which the controller finalizes features that have no level yet, at the newest level that
    all live brokers support. None if there is nothing to finalize."""
    if not image.brokers:
        return None
    found = {
        name: min(node.features.get(name, NONE)[1] for node in image.brokers.values())
        for name in SUPPORTED
        if name not in image.features.levels
    }
    wanted = {name: level for name, level in found.items() if level > 0}
    return _plan(image, wanted) if wanted else None


def update(image: ClusterImage, updates: Sequence[FeatureUpdate]) -> Plan | None:
    """Returns the change; None if every feature has its level already. Raises `BrokerError` with Kafka's code for the
    first update that is refused."""
    wanted: dict[str, int] = {}
    for asked in updates:
        if asked.name in wanted:
            raise BrokerError(ErrorCode.invalid_request, f"the feature {asked.name} is named more than once")
        _check(image, asked)
        wanted[asked.name] = asked.level
    changed = {name: level for name, level in wanted.items() if image.features.levels.get(name) != level}
    return _plan(image, changed) if changed else None


def _plan(image: ClusterImage, changed: Mapping[str, int]) -> Plan:
    node = FeaturesNode(features={**image.features.levels, **changed})
    return Plan(operations=[Set(paths.FEATURES, node.encode(), image.features.path_version)])


def _check(image: ClusterImage, asked: FeatureUpdate) -> None:
    now = image.features.level(asked.name)
    if asked.level < 0:
        raise _refused(asked, "a level is 0 or more")
    if asked.kind not in tuple(UpgradeType):
        raise _refused(asked, f"there is no upgrade type {asked.kind}: 1 upgrade, 2 safe and 3 unsafe downgrade")
    if asked.name not in SUPPORTED:
        raise _refused(asked, f"there is no such feature (there are: {', '.join(sorted(SUPPORTED))})")
    for number, node in image.brokers.items():
        lowest, highest = node.features.get(asked.name, NONE)
        if not lowest <= asked.level <= highest:
            raise _refused(asked, f"broker {number} supports {lowest} to {highest}")
    if asked.level > now and asked.kind != UpgradeType.UPGRADE:
        raise _refused(asked, f"it is at {now}: a downgrade cannot lead to a higher level")
    if asked.level < now:
        _check_downgrade(image, asked, now)


def _check_downgrade(image: ClusterImage, asked: FeatureUpdate, now: int) -> None:
    if asked.kind == UpgradeType.UPGRADE:
        raise _refused(asked, f"it is at {now}: a lower level needs the upgrade type of a safe downgrade")
    if asked.kind == UpgradeType.UNSAFE_DOWNGRADE:
        raise _refused(asked, "unsafe downgrades, which lose records, are not supported")
    if asked.name == REPLICATION:
        copied = [tp for tp, partition in image.partitions() if len(partition.replicas) > 1]
        if copied:
            raise _refused(
                asked,
                f"{counted(len(copied), 'partition')} with several replicas ({some_of(copied)}): reassign each to one "
                "first (klamm cluster reassign TOPIC --replication-factor 1)",
            )


def _refused(asked: FeatureUpdate, why: str) -> BrokerError:
    return BrokerError(ErrorCode.invalid_update_version, f"feature {asked.name}, level {asked.level}: {why}")
