"""What the controller writes after brokers, configurations or reports have changed, as pure functions of what it read.

The rule for one partition is `core.replication.elections` (docs/replication.md, R7 and R8). Here it is applied to all
of them: with the topic's settings, without brokers whose log of the partition is offline, and with leader epochs above
the clock's floor, so that none is used again after a restore of coordination and logs from one backup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from ...config.sections.topic import TopicConfig
from ...errors import ConfigError, ErrorCode
from ...records.partition import TopicPartition
from ...replication.elections import awaited_ends, elect, has_live_leader
from ...replication.partition_state import NO_EPOCH, NO_LEADER, PartitionState
from ...replication.registrations import DOUBTED, Registrations, Standing, standing
from ..brokers.reports import Reports
from ..image import ClusterImage, PartitionImage, TopicImage
from ..reassignment import effective_min_isr

MIN_INSYNC_REPLICAS = "min.insync.replicas"
UNCLEAN_LEADER_ELECTION = "unclean.leader.election.enable"


class Terms(NamedTuple):
    """What new states are made with: the controller's epoch, a lower bound of new leader epochs, and the broker's
    defaults for topics.

    States with a broker epoch below `held_below` do not change until all replicas of the partition have registered
    since: one of them may know that the states, and perhaps the registrations, are from an older backup. A state that
    this controller has written in its own epoch is in no such backup, so its election is not postponed, unless the
    state was written only to doubt another one.
    """

    controller_epoch: int
    epoch_floor: int
    defaults: TopicConfig
    held_below: int = NO_EPOCH


def elections(
    image: ClusterImage, registrations: Registrations, reports: Reports, terms: Terms
) -> Iterator[tuple[TopicPartition, PartitionState]]:
    """Yields the partitions whose state must change, with the new one."""
    for topic in image.topics.values():
        settings = _settings(topic, terms.defaults)
        for number, partition in topic.partitions.items():
            if is_held(partition.state, partition.replicas, registrations, terms):
                continue
            tp = TopicPartition(topic.name, number)
            elected = elected_state(tp, partition, registrations, reports, terms, settings)
            if elected is not None:
                yield tp, elected


def is_held(state: PartitionState, replicas: Sequence[int], registrations: Registrations, terms: Terms) -> bool:
    """Returns True if the election is postponed until replicas are back: see `Terms`."""
    if state.leader_broker_epoch >= terms.held_below:
        return False
    if state.controller_epoch == terms.controller_epoch and DOUBTED not in state.data_ids.values():
        return False  # as of a topic created since, whose leader had registered before this broker
    return any((found := registrations.get(replica)) is None or found.epoch < terms.held_below for replica in replicas)


def holds_elections(image: ClusterImage, terms: Terms) -> bool:
    """Returns True if the election of any partition is postponed until replicas are back."""
    return any(
        is_held(partition.state, partition.replicas, image.registrations, terms) for _, partition in image.partitions()
    )


def doubted(image: ClusterImage, terms: Terms, leader_epoch: int, count: int) -> dict[TopicPartition, PartitionState]:
    """Returns at most `count` states that are not doubted yet, as doubted: without a leader, and with all replicas as
    in-sync members of unknown data (R13). A state above `leader_epoch` was made after the restore."""

    def found() -> Iterator[tuple[TopicPartition, PartitionState]]:
        for tp, partition in image.partitions():
            state = partition.state
            if state.leader_epoch <= leader_epoch and DOUBTED not in state.data_ids.values():
                yield tp, doubted_state(state, partition.replicas, terms)

    return dict(islice(found(), count))


def doubted_state(state: PartitionState, replicas: tuple[int, ...], terms: Terms) -> PartitionState:
    """Returns the state as doubted, in a new leader epoch."""
    ids = dict.fromkeys(replicas, DOUBTED)
    after = PartitionState(
        NO_LEADER, state.leader_epoch + 1, NO_EPOCH, replicas, (), ids, terms.controller_epoch, state.mirror,
        state.promoted_epoch,
    )  # fmt: skip
    return above_floor(state, after, terms.epoch_floor)


def first_elections(
    image: ClusterImage, registrations: Registrations, reports: Reports, terms: Terms, count: int
) -> dict[TopicPartition, PartitionState]:
    """Returns the first `count` of `elections`."""
    return dict(islice(elections(image, registrations, reports, terms), count))


class ElectionSettings(NamedTuple):
    """The settings of a topic's configuration that elections depend on."""

    min_insync_replicas: int
    unclean: bool


def _settings(topic: TopicImage, defaults: TopicConfig) -> ElectionSettings:
    own = topic.configs.get(UNCLEAN_LEADER_ELECTION)
    unclean = defaults.unclean_leader_election_enable if own is None else own.strip().lower() == "true"
    return ElectionSettings(min_insync_replicas(topic.configs, defaults), unclean)


def min_insync_replicas(configs: Mapping[str, str], defaults: TopicConfig) -> int:
    """Returns the topic's `min.insync.replicas`; an invalid value counts as not set."""
    own = configs.get(MIN_INSYNC_REPLICAS)
    if own is None:
        return defaults.min_insync_replicas
    try:
        return TopicConfig.from_strings({MIN_INSYNC_REPLICAS: own}, defaults).min_insync_replicas
    except ConfigError:
        return defaults.min_insync_replicas


def elected_state(
    tp: TopicPartition,
    partition: PartitionImage,
    registrations: Registrations,
    reports: Reports,
    terms: Terms,
    settings: ElectionSettings,
) -> PartitionState | None:
    """Returns the state that the controller should write; None if nothing changes."""
    usable = _with_log(tp, registrations, reports)
    if usable is registrations and _is_settled(partition.state, registrations):
        return None
    elected = elect(
        partition.state,
        partition.replicas,
        usable,
        reports.recovered.get(tp, {}),
        effective_min_isr(settings.min_insync_replicas, partition.assignment),
        terms.controller_epoch,
        unclean=settings.unclean,
    )
    return None if elected is None else above_floor(partition.state, elected, terms.epoch_floor)


def _with_log(tp: TopicPartition, registrations: Registrations, reports: Reports) -> Registrations:
    """Returns the registrations without those of brokers whose log of the partition is offline."""
    offline = [broker for broker, partitions in reports.offline.items() if tp in partitions]
    return {broker: r for broker, r in registrations.items() if broker not in offline} if offline else registrations


def _is_settled(state: PartitionState, registrations: Registrations) -> bool:
    """Returns True if `elect` would change nothing, as for nearly all partitions at nearly all times: every member is
    in sync, live, sound, not leaving and has space on its disk, and the leader leads under its registration."""
    if state.elr or state.leader == NO_LEADER:
        return False
    for member in state.isr:
        found = registrations.get(member)
        if found is None or not found.takes_records or found.data_ids[0] != state.data_ids[member]:
            return False
    return has_live_leader(state, registrations)


def above_floor(before: PartitionState, after: PartitionState, floor: int) -> PartitionState:
    """Returns the new state, with a leader epoch of at least `floor` if it starts a new one."""
    if after.leader_epoch == before.leader_epoch or after.leader_epoch >= floor:
        return after
    return replace(after, leader_epoch=floor)


def new_state(replicas: tuple[int, ...], registrations: Registrations, controller_epoch: int) -> PartitionState:
    """Returns the first state of a partition: all live replicas are in sync; the leader is the first that is not
    leaving and has space on its disk."""
    isr = tuple(replica for replica in replicas if replica in registrations)
    leader = next((replica for replica in isr if registrations[replica].takes_records), isr[0])
    data_ids = {replica: registrations[replica].data_id for replica in isr}
    return PartitionState(leader, 0, registrations[leader].epoch, isr, (), data_ids, controller_epoch)


def without_elr_at(topic: TopicImage, minimum: int) -> Iterator[tuple[TopicPartition, PartitionState]]:
    """Yields the partitions whose ELR must be emptied before the minimum of in-sync replicas is lowered (R6)."""
    for number, partition in topic.partitions.items():
        state = partition.state
        if state.elr and len(state.isr) >= effective_min_isr(minimum, partition.assignment):
            data_ids = {member: state.data_ids[member] for member in state.isr}
            yield TopicPartition(topic.name, number), replace(state, elr=(), data_ids=data_ids)


def count_elections(image: ClusterImage, states: Mapping[TopicPartition, PartitionState]) -> tuple[int, int]:
    """Returns how many of the new states have another leader than in the image, and how many of these leaders were
    neither in sync nor eligible before: they may lack committed records."""
    elected = unclean = 0
    for tp, state in states.items():
        before = image.partition(tp)
        if before is not None and state.leader not in (NO_LEADER, before.leader):
            elected += 1
            unclean += state.leader not in before.state.members
    return elected, unclean


Refusal = tuple[ErrorCode, str]


def preferred_election(
    partition: PartitionImage, registrations: Registrations, terms: Terms
) -> PartitionState | Refusal:
    """Returns the state in which the first replica leads, or the reason why there is none (ElectLeaders, PREFERRED)."""
    state, preferred = partition.state, partition.replicas[0]
    registration = registrations.get(preferred)
    if state.leader == preferred and registration is not None:
        return ErrorCode.election_not_needed, "the preferred replica leads already"
    sound = standing(registration, state.data_ids.get(preferred)) is Standing.SOUND
    if registration is None or registration.leaving or preferred not in state.isr or not sound:
        return ErrorCode.preferred_leader_not_available, f"broker {preferred} is not in sync, or is not live"
    if registration.full:
        return ErrorCode.preferred_leader_not_available, f"the disk of broker {preferred} is full"
    moved = replace(
        state,
        leader=preferred,
        leader_epoch=state.leader_epoch + 1,
        leader_broker_epoch=registration.epoch,
        controller_epoch=terms.controller_epoch,
    )
    return above_floor(state, moved, terms.epoch_floor)


def unclean_election(
    tp: TopicPartition,
    partition: PartitionImage,
    registrations: Registrations,
    reports: Reports,
    terms: Terms,
    minimum: int,
) -> PartitionState | Refusal:
    """Returns the state in which the live replica with the most records leads, or the reason why there is none
    (ElectLeaders, UNCLEAN). A leader that is not live counts as none, as in Metadata: the state still names it while
    the election is postponed, see `Terms`."""
    if partition.leader in registrations:
        return ErrorCode.election_not_needed, "the partition has a leader"
    settings = ElectionSettings(minimum, unclean=True)
    elected = elected_state(tp, partition, registrations, reports, terms, settings)
    if elected is not None and elected.leader != NO_LEADER:
        return elected
    usable = _with_log(tp, registrations, reports)
    awaited = awaited_ends(partition.state, partition.replicas, usable, reports.recovered.get(tp, {}))
    why = "no replica is live"
    if awaited and partition.leader != NO_LEADER:
        away = [str(replica) for replica in partition.replicas if replica not in registrations]
        why = f"the election waits for brokers that are not back ({', '.join(away)}): try again"
    elif awaited:
        why = f"where their logs end is not reported yet by the brokers {', '.join(map(str, awaited))}: try again"
    return ErrorCode.eligible_leaders_not_available, why


def is_led_elsewhere(image: ClusterImage, broker_id: int) -> bool:
    """Returns True if no partition of the image has both this broker and one that stays among its in-sync replicas. A
    partition whose other in-sync replicas are leaving too, or are dead, cannot be given to another leader."""
    staying = {number for number, node in image.brokers.items() if not node.registration.leaving} - {broker_id}
    return not any(broker_id in each.isr and not staying.isdisjoint(each.isr) for _, each in image.partitions())
