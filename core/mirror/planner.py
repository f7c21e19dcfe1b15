"""Which topics of the source a link mirrors, under which names, and what must change at the target (docs/mirror.md, M11
and section "What a link does")."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from ..config.sections.mirror import MirrorConfig

_INTERNAL: Final = "an internal topic of the source is never mirrored"


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """`configs`: those that the topic itself sets. `mirror_of`: the cluster that the topic is mirrored from, if any."""

    topic_id: UUID
    partitions: int
    internal: bool = False
    configs: Mapping[str, str] = field(default_factory=dict)
    mirror_of: str = ""


@dataclass(frozen=True, slots=True)
class TargetTopic:
    """A topic of the target. `link`, `source` and `source_id`, the id of the source's topic at the start of the mirror:
    set if it is a mirror. `promoted`: it was one."""

    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)
    link: str = ""
    source: str = ""
    promoted: bool = False
    source_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class NewMirror:
    """A mirror topic that is to be created."""

    source: str
    topic_id: UUID
    partitions: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LinkPlan:
    """Keys are the target's topic names, in `refused` and `left_out` the source's. `refused`: why a topic that the link
    selects is not mirrored. `left_out`: why one is not mirrored, or not wholly: the pattern matches and does not select
    it, it was promoted, or its mirror is not selected any more."""

    create: Mapping[str, NewMirror]
    grow: Mapping[str, int]
    configs: Mapping[str, Mapping[str, str | None]]
    refused: Mapping[str, str]
    left_out: Mapping[str, str]


def selects(config: MirrorConfig, name: str, *, internal: bool) -> bool:
    """Returns True if the link mirrors the source's topic of this name. A pattern never selects internal topics."""
    if name in config.topics:
        return not internal
    return not internal and not name.startswith("_") and _matches(config.topics_regex, name)


def _matches(pattern: str, name: str) -> bool:
    return bool(pattern) and re.fullmatch(pattern, name) is not None


def selects_group(config: MirrorConfig, group: str) -> bool:
    return _matches(config.groups_regex, group)


def plan_link(
    link_name: str,
    config: MirrorConfig,
    own_cluster: str,
    source: Mapping[str, SourceTopic],
    target: Mapping[str, TargetTopic],
) -> LinkPlan:
    """Compares both clusters.

    A topic whose records came from this cluster is never copied; one is refused if a topic of its name exists here that
    is not this link's mirror of it (M11). Partitions are added, never removed. Of the configurations only those that
    the link names are copied; one that the source does not set is reset. Nothing is copied of a source's topic that was
    created again: its retention would delete records of the former one (M8).
    """
    create: dict[str, NewMirror] = {}
    grow: dict[str, int] = {}
    configs: dict[str, dict[str, str | None]] = {}
    refused: dict[str, str] = {name: "it does not exist at the source" for name in config.topics if name not in source}
    left_out: dict[str, str] = {}
    for name, topic in sorted(source.items()):
        if not selects(config, name, internal=topic.internal):
            if name in config.topics:
                refused[name] = f"{_INTERNAL}; remove it from `topics`"
            elif _matches(config.topics_regex, name):
                left_out[name] = _INTERNAL if topic.internal else "to mirror it, list it in `topics`"
            continue
        here = config.prefix + name
        found = target.get(here)
        if topic.mirror_of == own_cluster:
            (refused if name in config.topics else left_out)[name] = "it is a mirror of this cluster"
        elif found is None:
            copied = {key: value for key, value in topic.configs.items() if key in config.configs}
            create[here] = NewMirror(name, topic.topic_id, topic.partitions, copied)
        elif not found.link and found.promoted:
            left_out[name] = f"{here} was promoted, so clients write it here; to copy it anew, delete it here"
        elif (found.link, found.source) != (link_name, name):
            owner = f"a mirror of link {found.link}" if found.link else "an ordinary topic"
            refused[name] = f"topic {here} exists and is {owner}; delete it, or set another prefix"
        elif topic.topic_id == found.source_id:
            if topic.partitions > found.partitions:
                grow[here] = topic.partitions
            changed = {
                key: topic.configs.get(key)
                for key in config.configs
                if topic.configs.get(key) != found.configs.get(key)
            }
            if changed:
                configs[here] = changed
    for here, mirror in target.items():
        there = source.get(mirror.source) if mirror.link == link_name else None
        if there is not None and not selects(config, mirror.source, internal=there.internal):
            left_out[mirror.source] = (
                f"the link does not select it any more. {here} is copied on without new partitions and configurations: "
                "promote or delete it"
            )
    return LinkPlan(create, grow, configs, refused, left_out)
