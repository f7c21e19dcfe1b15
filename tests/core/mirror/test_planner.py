"""What a link creates, grows, configures and refuses."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import pytest
from pydantic import ValidationError

from klamm.core.config.sections.mirror import MirrorConfig
from klamm.core.mirror.planner import LinkPlan, SourceTopic, TargetTopic, plan_link, selects_group

ID = UUID(int=7)


def planned(source: Mapping[str, SourceTopic], target: Mapping[str, TargetTopic], **keys: object) -> LinkPlan:
    config = MirrorConfig.model_validate({"bootstrap.servers": "b:9092", "topics.regex": "flights.*", **keys})
    return plan_link("berlin", config, "here", source, target)


def test_a_new_topic_is_created_with_the_configurations_that_are_copied() -> None:
    configs = {"retention.ms": "1000", "min.insync.replicas": "2"}
    plan = planned({"flights": SourceTopic(ID, 3, configs=configs), "trips": SourceTopic(ID, 1)}, {})
    assert set(plan.create) == {"flights"}
    assert plan.create["flights"].partitions == 3
    assert plan.create["flights"].configs == {"retention.ms": "1000"}


def test_partitions_are_added_and_configurations_follow() -> None:
    here = TargetTopic(2, {"retention.bytes": "5", "min.insync.replicas": "2"}, "berlin", "flights", source_id=ID)
    plan = planned({"flights": SourceTopic(ID, 4, configs={"retention.ms": "9"})}, {"flights": here})
    assert plan.grow == {"flights": 4}
    assert plan.configs == {"flights": {"retention.ms": "9", "retention.bytes": None}}
    assert not plan.create


def test_the_number_of_partitions_never_shrinks() -> None:
    here = TargetTopic(4, {}, "berlin", "flights", source_id=ID)
    assert not planned({"flights": SourceTopic(ID, 2)}, {"flights": here}).grow


def test_nothing_of_a_topic_that_was_created_again_is_taken() -> None:
    """Its retention would delete what the mirror has of the former one."""
    here = TargetTopic(1, {"retention.ms": "-1"}, "berlin", "flights", source_id=UUID(int=8))
    plan = planned({"flights": SourceTopic(ID, 4, configs={"retention.ms": "9"})}, {"flights": here})
    assert (plan.create, plan.grow, plan.configs, plan.refused) == ({}, {}, {}, {})


@pytest.mark.parametrize(
    ("topic", "here", "keys", "why"),
    [
        (SourceTopic(ID, 1), TargetTopic(1), {}, "ordinary topic"),
        (SourceTopic(ID, 1), TargetTopic(1, link="paris", source="flights"), {}, "mirror of link paris"),
        (SourceTopic(ID, 1, mirror_of="here"), None, {"topics": ["flights"]}, "mirror of this cluster"),
        (SourceTopic(ID, 1, internal=True), None, {"topics": ["flights"]}, "internal"),
    ],
)
def test_a_topic_is_refused(topic: SourceTopic, here: TargetTopic | None, keys: dict[str, object], why: str) -> None:
    plan = planned({"flights": topic}, {} if here is None else {"flights": here}, **keys)  # type: ignore[arg-type]
    assert why in plan.refused["flights"]
    assert not plan.create


def test_a_pattern_leaves_mirrors_of_this_cluster_out() -> None:
    plan = planned({"flights": SourceTopic(ID, 1, mirror_of="here")}, {})
    assert plan.left_out == {"flights": "it is a mirror of this cluster"}
    assert not plan.create
    assert planned({"flights": SourceTopic(ID, 1, mirror_of="third")}, {}).create


def test_a_promoted_topic_is_no_error_and_is_not_taken_back() -> None:
    plan = planned({"flights": SourceTopic(ID, 1)}, {"flights": TargetTopic(1, promoted=True)})
    assert "was promoted" in plan.left_out["flights"]
    assert not plan.refused
    assert not plan.create


def test_a_mirror_that_is_not_selected_any_more_is_named() -> None:
    plan = planned({"trips": SourceTopic(ID, 2)}, {"trips": TargetTopic(1, link="berlin", source="trips")})
    assert "does not select it any more" in plan.left_out["trips"]
    assert not plan.grow


def test_a_topic_that_was_promoted_before_it_became_another_links_mirror_is_refused() -> None:
    here = TargetTopic(1, link="paris", source="flights", promoted=True)
    assert "mirror of link paris" in planned({"flights": SourceTopic(ID, 1)}, {"flights": here}).refused["flights"]


def test_a_named_topic_that_does_not_exist_is_reported() -> None:
    assert "does not exist" in planned({}, {}, topics=["trips"]).refused["trips"]


def test_a_pattern_selects_neither_internal_topics_nor_those_with_an_underscore() -> None:
    found = {"__consumer_offsets": SourceTopic(ID, 50, internal=True), "_schemas": SourceTopic(ID, 1)}
    plan = planned(found, {}, **{"topics.regex": ".*"})
    assert not plan.create
    assert not plan.refused
    assert "never mirrored" in plan.left_out["__consumer_offsets"]
    assert "list it in `topics`" in plan.left_out["_schemas"]
    assert set(planned(found, {}, topics=["_schemas"]).create) == {"_schemas"}


def test_a_prefix_renames() -> None:
    plan = planned({"flights": SourceTopic(ID, 1)}, {"flights": TargetTopic(1)}, prefix="berlin.")
    assert plan.create["berlin.flights"].source == "flights"


def test_groups_are_selected_by_their_whole_names() -> None:
    config = MirrorConfig.model_validate({"bootstrap.servers": "b:9092", "topics": "a", "groups.regex": "load.*"})
    assert selects_group(config, "loader")
    assert not selects_group(config, "my-loader")


@pytest.mark.parametrize(
    "keys",
    [
        {"topics": "a"},
        {"bootstrap.servers": "b:1"},
        {"bootstrap.servers": "b", "topics": "a"},
        {"bootstrap.servers": "b:1", "topics.regex": "("},
        {"bootstrap.servers": "b:1", "topics.regex": r"([a-z]+-?)+"},
        {"bootstrap.servers": "b:1", "topics": "a", "groups.regex": r"(a|a){1,99}"},
        {"bootstrap.servers": "b:1", "topics": "a", "prefix": "berlin/"},
        {"bootstrap.servers": "b:1", "topics": "a", "prefix": "p" * 249},
    ],
)
def test_a_wrong_link_is_refused(keys: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        MirrorConfig.model_validate(keys)


@pytest.mark.parametrize(
    "pattern", [r"(flights|trips)\..*", r"(old-)?trips", r"a\(b\)+", r"[()]+", r"[])*]+x", "(?i)Trips"]
)
def test_a_pattern_without_a_repeated_group_is_taken(pattern: str) -> None:
    MirrorConfig.model_validate({"bootstrap.servers": "b:1", "topics": "a", "groups.regex": pattern})
