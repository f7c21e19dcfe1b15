"""Planted bugs of the mirror, each of which random schedules must catch. `rule` is the number in docs/mirror.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from klamm.core.mirror import adoption, group_offsets, promotion
from klamm.core.mirror.adoption import PromotionStart
from klamm.core.mirror.group_offsets import GroupOffset, GroupPlan
from klamm.core.mirror.partition_mirror import (
    MirrorAnswer,
    MirrorDecision,
    MirrorFetch,
    MirrorResult,
    PartitionMirror,
)
from klamm.core.records.partition import TopicPartition
from klamm.core.replication import elections
from klamm.core.replication.leader import PartitionLeader
from klamm.core.replication.partition_state import PartitionState
from klamm.core.replication.replica_fetch import EpochEndOffset
from klamm.core.replication.replica_log import ReplicaLog

from .mirror_log import MirrorLog
from .mirror_source import Source
from .mirror_world import Broker
from .runner import Mutation

_common_end: Final = adoption.common_end
_take_over: Final = Broker.take_over
_accept: Final = PartitionMirror.accept
_on_answer: Final = PartitionMirror.on_answer
_on_bounds: Final = PartitionMirror.on_bounds
_take_bounds: Final = PartitionMirror._take_bounds
_diverged: Final = PartitionMirror._diverged
_abort_in_gap: Final = MirrorLog.abort_in_gap
_mirror: Final = MirrorLog.mirror
_offsets_to_copy: Final = group_offsets.offsets_to_copy
_changed: Final = elections._changed
_answer: Final = Source.answer
_MANY: Final = 2**40


def _mirror_begins_epoch(self: MirrorLog, leader_epoch: int) -> int:
    self._assign(leader_epoch, self.log_end_offset)
    return _mirror(self, leader_epoch)


def _appends_any_epoch(self: PartitionMirror, fetch: MirrorFetch, answer: MirrorAnswer) -> MirrorResult:
    if answer.largest_epoch > self.leader.epoch and self._is_current(fetch):
        self._log.role = ("mirror", answer.largest_epoch)  # type: ignore[attr-defined]
        self._log.append_as_follower(answer.records, answer.largest_epoch, self._term)
        self._log.role = ("mirror", self.leader.epoch)  # type: ignore[attr-defined]
        return MirrorResult.APPENDED
    return _on_answer(self, fetch, answer)


def _keeps_what_was_shown(self: PartitionMirror, diverging: EpochEndOffset) -> MirrorResult:
    end = max(diverging.end_offset, self._log.high_watermark)
    return _diverged(self, EpochEndOffset(diverging.leader_epoch, end))


def _cuts_without_setting_aside(self: PartitionMirror, diverging: EpochEndOffset) -> MirrorResult:
    self._set_aside = lambda _: None
    return _diverged(self, diverging)


def _forgets_divergence(self: PartitionMirror, fetch: MirrorFetch, answer: MirrorAnswer) -> MirrorResult:
    return _on_answer(self, fetch, answer._replace(diverging_epoch=None))


def _asks_without_epoch(self: Source, fetch: MirrorFetch, topic_id: Any) -> MirrorAnswer:
    return _answer(self, fetch._replace(last_epoch=-1), topic_id)


def _skips_silently(self: PartitionMirror, fetch: MirrorFetch, log_start_offset: int, topic_id: Any) -> MirrorResult:
    result = _on_bounds(self, fetch, log_start_offset, topic_id)
    if self.gap is not None:
        self.skip_gap()
    return result


def _restarts_at_a_gap(self: PartitionMirror, fetch: MirrorFetch, log_start_offset: int, topic_id: Any) -> MirrorResult:
    if self._is_current(fetch) and fetch.offset < log_start_offset:
        self._log.restart_at(log_start_offset, self.leader.epoch, self._term)
        return MirrorResult.APPENDED
    return _on_bounds(self, fetch, log_start_offset, topic_id)


def _keeps_all(log: ReplicaLog, promotion: PromotionStart) -> int:
    return log.log_end_offset


def _cuts_by_offset(log: ReplicaLog, promotion: PromotionStart) -> int:
    return min(promotion.offset, log.log_end_offset)


def _cuts_by_epoch(log: ReplicaLog, promotion: PromotionStart) -> int:
    return _common_end(log, promotion._replace(offset=_MANY))


def _leader_alone_is_cut(self: Broker) -> None:
    if self.world.cluster.state.leader == self.number:
        _take_over(self)
    self.promotion = None


def _accepts_anywhere(self: PartitionMirror, decision: MirrorDecision) -> bool:
    log = self._log
    return _accept(self, decision._replace(end=log.log_end_offset, last_epoch=log.last_record_epoch))


def _is_always_current(self: PartitionMirror, _: MirrorFetch) -> bool:
    return True


def _source_decides(self: PartitionMirror, answer: MirrorAnswer) -> None:
    _take_bounds(self, answer)
    self._log.advance_high_watermark(answer.high_watermark)


def _takes_log_start_always(self: PartitionMirror, answer: MirrorAnswer) -> None:
    self._rules = replace(self._rules, follows_retention=True)
    _take_bounds(self, answer)


def _takes_log_start_at_once(self: PartitionMirror) -> None:
    if self._rules.follows_retention:
        self._log.advance_log_start(self._source_start)


def _takes_start_as_end(self: PartitionMirror, answer: MirrorAnswer) -> None:
    _take_bounds(self, answer._replace(log_start_offset=answer.high_watermark))


def _unknown_epoch_restarts(
    self: PartitionMirror, fetch: MirrorFetch, log_start_offset: int, topic_id: Any
) -> MirrorResult:
    if self._is_current(fetch) and fetch.offset >= log_start_offset:
        self._log.restart_at(log_start_offset, self.leader.epoch, self._term)
        return MirrorResult.APPENDED
    return _on_bounds(self, fetch, log_start_offset, topic_id)


def _any_topic(self: Source, fetch: MirrorFetch, topic_id: Any) -> MirrorAnswer:
    return _answer(self, fetch, None)


def _promoted_in_the_same_epoch(state: PartitionState, source_epoch: int = -1) -> PartitionState:
    return replace(state, mirror="")


def _elected_without_mirror(*arguments: Any) -> PartitionState:
    return replace(_changed(*arguments), mirror="")


def _accepts_any_term(self: MirrorLog, leader_epoch: int, term: int | None) -> None:
    return None


def _aborts_behind(self: MirrorLog, end: int, epoch: int, leader_epoch: int, term: int | None = None) -> int:
    return _abort_in_gap(self, end + 1, epoch, leader_epoch, term)


def _raises_only_the_gap(self: PartitionMirror) -> None:
    self._skip_to, self.gap = _MANY, None


def _without_ends(
    source: Mapping[TopicPartition, GroupOffset],
    target: Mapping[TopicPartition, GroupOffset],
    copied: Mapping[TopicPartition, tuple[GroupOffset, ...]],
    ends: Mapping[TopicPartition, int],
    members: Any,
) -> GroupPlan:
    return _offsets_to_copy(source, target, copied, dict.fromkeys(ends, _MANY), members)


def _overwrites_moved(source: Any, target: Any, copied: Any, ends: Any, members: Any) -> GroupPlan:
    return _offsets_to_copy(source, target, {tp: (here,) for tp, here in target.items()}, ends, members)


def _overwrites_members(source: Any, target: Any, copied: Any, ends: Any, members: Any) -> GroupPlan:
    return _offsets_to_copy(source, target, copied, ends, ())


MIRROR_MUTATIONS: Final = {
    mutation.name: mutation
    for mutation in (
        Mutation("append-above-own-epoch", "M1", "a batch of a later source epoch is stored without a raised epoch",
                 ((PartitionMirror, "on_answer", _appends_any_epoch),)),
        Mutation("local-epoch-in-log", "M3", "the target's own epoch begins in a mirror's log",
                 ((MirrorLog, "mirror", _mirror_begins_epoch),)),
        Mutation("election-ends-mirror", "M3", "the next leader accepts clients",
                 ((elections, "_changed", _elected_without_mirror),)),
        Mutation("late-answer", "M4", "an answer to an earlier request is applied",
                 ((PartitionMirror, "_is_current", _is_always_current),)),
        Mutation("source-watermark", "M5", "the source's high watermark decides what is shown",
                 ((PartitionMirror, "_take_bounds", _source_decides),)),
        Mutation("log-start-against-own-retention", "M5", "the source's log start is taken with `retention: own`",
                 ((PartitionMirror, "_take_bounds", _takes_log_start_always),)),
        Mutation("log-start-too-high", "M5", "more is deleted than at the source",
                 ((PartitionMirror, "_take_bounds", _takes_start_as_end),)),
        Mutation("log-start-above-watermark", "M5", "more is deleted than the members of the ISR have reached",
                 ((PartitionMirror, "_follow_retention", _takes_log_start_at_once),)),
        Mutation("no-last-epoch", "M6", "the fetch does not carry the epoch of the last record",
                 ((Source, "answer", _asks_without_epoch),)),
        Mutation("divergence-ignored", "M6", "a diverging epoch is not applied",
                 ((PartitionMirror, "on_answer", _forgets_divergence),)),
        Mutation("no-cut-below-watermark", "M6", "what was shown is never cut",
                 ((PartitionMirror, "_diverged", _keeps_what_was_shown),)),
        Mutation("cut-not-set-aside", "M6", "records are cut without a copy",
                 ((PartitionMirror, "_diverged", _cuts_without_setting_aside),)),
        Mutation("followers-keep-ends", "M6", "after a cut the leader counts what followers had before it",
                 ((PartitionLeader, "truncated", lambda self: None),)),
        Mutation("gap-not-stored", "M7", "records that the source has deleted are skipped silently",
                 ((PartitionMirror, "on_bounds", _skips_silently),)),
        Mutation("gap-restarts-log", "M7", "a gap drops the log, as a follower does",
                 ((PartitionMirror, "on_bounds", _restarts_at_a_gap),)),
        Mutation("gap-skips-too-much", "M7", "more is skipped than the source has deleted",
                 ((PartitionMirror, "skip_gap", _raises_only_the_gap),)),
        Mutation("gap-leaves-transactions", "M7", "a transaction whose marker lies in a gap stays open",
                 ((MirrorLog, "abort_in_gap", lambda self, *_: 0),)),
        Mutation("gap-aborts-beyond", "M7", "markers are written behind the gap",
                 ((MirrorLog, "abort_in_gap", _aborts_behind),)),
        Mutation("failure-is-final", "M7", "a gap or an epoch that could not be written is not asked for again",
                 ((PartitionMirror, "failed", lambda self: None),)),
        Mutation("decision-anywhere", "M7", "what was decided about one gap counts for the next",
                 ((PartitionMirror, "accept", _accepts_anywhere),)),
        Mutation("topic-by-name", "M8", "the fetch takes whatever topic has the name",
                 ((Source, "answer", _any_topic),
                  (PartitionMirror, "on_topic", lambda self, _: True))),
        Mutation("unknown-epoch-restarts", "M8", "a log of another history replaces the mirror's",
                 ((PartitionMirror, "on_bounds", _unknown_epoch_restarts), (Source, "answer", _any_topic),
                  (PartitionMirror, "on_topic", lambda self, _: True))),
        Mutation("offset-above-end", "M10", "a group's offset is copied before its records",
                 ((group_offsets, "offsets_to_copy", _without_ends),)),
        Mutation("moved-group-overwritten", "M10", "the offset of a group that has moved here is overwritten",
                 ((group_offsets, "offsets_to_copy", _overwrites_moved),)),
        Mutation("group-with-members-overwritten", "M10", "the offset of a group with members is overwritten",
                 ((group_offsets, "offsets_to_copy", _overwrites_members),)),
        Mutation("last-epoch-alone", "M13", "a follower compares only its last epoch with its leader's",
                 ((PartitionLeader, "_compare_epochs", lambda self, _: None),)),
        Mutation("promotion-keeps-epoch", "M12", "a promotion begins no leader epoch",
                 ((promotion, "promoted", _promoted_in_the_same_epoch),)),
        Mutation("adopted-by-epochs-alone", "M12", "a former source is not cut where the promotion has begun",
                 ((adoption, "common_end", _keeps_all),)),
        Mutation("adopted-by-offset", "M12", "a former source keeps epochs that the promoted cluster may have",
                 ((adoption, "common_end", _cuts_by_offset),)),
        Mutation("adopted-by-epoch", "M12", "a former source keeps what it has written after the promotion",
                 ((adoption, "common_end", _cuts_by_epoch),)),
        Mutation("adopted-by-its-leader", "M12", "the leader of the former source is cut, other replicas are not",
                 ((Broker, "take_over", _leader_alone_is_cut),)),
        Mutation("term-not-checked", "M12", "a leader whose term is over goes on appending",
                 ((MirrorLog, "check_follows", _accepts_any_term),)),
    )
}  # fmt: skip
