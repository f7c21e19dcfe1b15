"""The leader of a mirrored partition: its next fetch from the source, and how an answer changes its log
(docs/mirror.md, M1 and M4 to M8).

The source answers as it answers any consumer, so the log holds only what was committed there. To the followers of the
target's own cluster the log is an ordinary leader's: `PartitionLeader` serves them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol
from uuid import UUID

from kio.schema.errors import ErrorCode

from ..replication.follower import truncation_offset
from ..replication.leader import PartitionLeader
from ..replication.partition_state import NO_EPOCH
from ..replication.replica_fetch import EpochEndOffset
from ..replication.replica_log import ReplicaLog


class MirrorStatus(Enum):
    """What a mirrored partition does, as `klamm mirror status` prints it."""

    COPYING = "COPYING"
    FOLLOWING = "FOLLOWING"
    """The log ends where the source's high watermark was in the last answer."""
    SOURCE_UNREACHABLE = "SOURCE_UNREACHABLE"
    """The source does not answer, or refuses the fetch."""
    FAILED = "FAILED"
    """What the source answers cannot be stored; it is tried again."""
    DIVERGED = "DIVERGED"
    """The source has lost records that are here, and `on.divergence` is `stop`."""
    GAP = "GAP"
    """The source has deleted records that were not copied, and `on.gap` is `stop`."""
    STALE = "STALE"
    """A compacted topic's source may have removed tombstones that were not copied."""
    SOURCE_REPLACED = "SOURCE_REPLACED"
    """The source's topic was created again, or its log is of another history."""


STOPPED = frozenset({MirrorStatus.DIVERGED, MirrorStatus.GAP, MirrorStatus.STALE, MirrorStatus.SOURCE_REPLACED})
"""The partition fetches nothing until the operator has decided."""


class MirrorResult(Enum):
    """What `on_answer` or `on_bounds` did, and what its caller does next."""

    APPENDED = "appended"
    """Records were stored, or there were none yet: fetch again."""
    CUT = "cut"
    """The log was truncated towards the source's: fetch again."""
    RESTARTED = "restarted"
    """The log was empty, and begins at the source's start now: store `begins`, and fetch again."""
    STALE = "stale"
    """The answer belongs to an earlier request; it is ignored."""
    REFUSED = "refused"
    """The source cannot serve the partition: back off."""
    OUT_OF_RANGE = "out of range"
    """Ask for the bounds of the source's log and call `on_bounds`."""
    GAP_FOUND = "gap found"
    """Store `gap`, then call `skip_gap`."""
    EPOCH_TOO_LOW = "epoch too low"
    """Have the partition's leader epoch raised to `wanted_epoch`. The records are fetched again in that epoch."""
    STOPPED = "stopped"
    """The partition fetches nothing until the operator has decided; see `status`."""


class MirrorFetch(NamedTuple):
    """A consumer's fetch. `last_epoch`: the source's epoch of the record before `offset`, -1 if there is none."""

    offset: int
    last_epoch: int


class FirstBatch(NamedTuple):
    """Where the batches of an answer begin."""

    base_offset: int
    leader_epoch: int


class MirrorAnswer(NamedTuple):
    """The source's answer to one partition. `first` is of the first batch in `records`; `largest_epoch`: the epoch of
    the last one. Bounds are -1 if the source does not state them."""

    error: ErrorCode = ErrorCode.none
    diverging_epoch: EpochEndOffset | None = None
    high_watermark: int = -1
    log_start_offset: int = -1
    records: bytes = b""
    largest_epoch: int = NO_EPOCH
    first: FirstBatch | None = None


class MirroredLog(ReplicaLog, Protocol):
    """The log of a mirror's leader."""

    def abort_in_gap(self, end: int, epoch: int, leader_epoch: int, term: int | None = None) -> int:
        """Ends open transactions by markers that abort them, at the last offsets below `end`, which is above the log
        end, and in the leader epoch `epoch`; returns their number. If there are fewer offsets, the oldest transactions
        are ended. Raises what `append_as_follower` raises."""
        ...


class MirrorGap(NamedTuple):
    """Offsets that the source had deleted before they were copied: from `start` up to `end`, which is not in it."""

    start: int
    end: int


class Cut(NamedTuple):
    """Records that were set aside because the source has lost them: from `start` up to `end`."""

    start: int
    end: int


class MirrorDecision(NamedTuple):
    """The operator's decision to continue a partition that has stopped. `status`: why it stopped, GAP, DIVERGED or
    STALE. `end` and `last_epoch` are those of its log, and name the record after which it stopped."""

    status: MirrorStatus
    end: int
    last_epoch: int


@dataclass(frozen=True, slots=True)
class MirrorRules:
    """`follows_retention`: the log start follows the source's (`retention: source`). The others are `on.gap: stop` and
    `on.divergence: stop`."""

    follows_retention: bool = True
    stops_at_gap: bool = False
    stops_at_divergence: bool = False


class PartitionMirror:
    """One term of the leader of a mirror. All calls on one thread, that of `leader`, except that `on_answer` and
    `on_bounds`, which do not touch `leader`'s followers, may run on another while the caller waits for them. Each of
    their results is passed to `notice` before the next fetch.

    `leader` leads under a state with `mirror`. `set_aside` stores the batches from an offset on beside the log, on the
    disk, and is called before they are removed. `topic_id` is the id of the source's topic at the start of the mirror,
    `begins` what an earlier term has stored.
    """

    def __init__(
        self,
        log: MirroredLog,
        leader: PartitionLeader,
        rules: MirrorRules,
        topic_id: UUID,
        set_aside: Callable[[int], object],
        begins: int = 0,
    ) -> None:
        assert leader.mirror_term is not None, "the state has no mirror"
        self.leader = leader
        self.topic_id = topic_id
        self.status = MirrorStatus.COPYING
        self.wanted_epoch = NO_EPOCH
        """The epoch that the partition needs before the next batch is stored; -1 if it needs none."""
        self.gap: MirrorGap | None = None
        """The gap that was found and is not stored yet."""
        self.cut: Cut | None = None
        """The last cut."""
        self.source_end = -1
        """The source's high watermark in its last answer."""
        self.begins = begins
        """Where the mirror begins; while its log ends there, nothing was copied, and the source may delete more."""
        self._log = log
        self._rules = rules
        self._set_aside = set_aside
        self._term = leader.mirror_term
        self._sent: MirrorFetch | None = None
        self._skip_to = 0
        """The source's log start behind a gap, which the next batch may begin at."""
        self._source_start = -1
        """The source's log start in its last answer."""
        self._accepted: MirrorStatus | None = None
        """What the operator has decided to continue over, until records are stored again."""

    @property
    def stopped(self) -> bool:
        return self.status in STOPPED

    @property
    def lag(self) -> int:
        """The offsets below the source's high watermark that are missing here; -1 before the first answer."""
        return -1 if self.source_end < 0 else max(self.source_end - self._next_fetch().offset, 0)

    def fetch(self) -> MirrorFetch | None:
        """Returns the next request; None while the partition is stopped, or waits for its epoch or for its gap to be
        stored."""
        if self.stopped or self.wanted_epoch != NO_EPOCH or self.gap is not None:
            return None
        self._follow_retention()
        self._sent = self._next_fetch()
        return self._sent

    def _next_fetch(self) -> MirrorFetch:
        log = self._log
        return MirrorFetch(max(log.log_end_offset, self._skip_to), log.last_record_epoch)

    def source_unavailable(self) -> None:
        """Notes that the source does not answer."""
        if not self.stopped:
            self.status = MirrorStatus.SOURCE_UNREACHABLE

    def failed(self) -> None:
        """Notes that an answer could not be stored, or that its gap or raised epoch could not be written. The answer is
        fetched again."""
        self.wanted_epoch, self.gap = NO_EPOCH, None
        if not self.stopped:
            self.status = MirrorStatus.FAILED

    def on_topic(self, topic_id: UUID) -> bool:
        """Compares the id of the source's topic with that of the start of the mirror (M8). Returns False, and stops, if
        the topic was created again: its offsets are those of other records."""
        if topic_id == self.topic_id:
            return True
        self.status = MirrorStatus.SOURCE_REPLACED
        self._sent = None  # the answer to a request in flight changes nothing any more
        return False

    def accept(self, decision: MirrorDecision) -> bool:
        """Continues over the gap, divergence or missed tombstones that the decision names, as if `on.gap: stop` or
        `on.divergence: stop` were not set, until records are stored again. Returns False, and changes nothing, if the
        partition has not stopped there."""
        log = self._log
        if decision != (self.status, log.log_end_offset, log.last_record_epoch):
            return False
        if decision.status is MirrorStatus.SOURCE_REPLACED or decision.status not in STOPPED:
            return False
        self._accepted, self.status = decision.status, MirrorStatus.COPYING
        return True

    def missed_tombstones(self) -> None:
        """Stops: keys that the source has deleted may remain here (M9)."""
        self.status = MirrorStatus.STALE

    # -- answers -------------------------------------------------------------------------------------------------

    def on_answer(self, fetch: MirrorFetch, answer: MirrorAnswer) -> MirrorResult:
        """Applies the answer to the request `fetch` (M4). Raises the errors of the log: it may have left this term."""
        if not self._is_current(fetch):
            return MirrorResult.STALE
        if answer.error is ErrorCode.offset_out_of_range:
            return MirrorResult.OUT_OF_RANGE
        if answer.error is not ErrorCode.none:
            self.status = MirrorStatus.SOURCE_UNREACHABLE
            return MirrorResult.REFUSED
        if answer.diverging_epoch is not None:
            return self._diverged(answer.diverging_epoch)
        if answer.largest_epoch > self.leader.epoch:  # M1: local followers would refuse the batch
            self.wanted_epoch = answer.largest_epoch
            return MirrorResult.EPOCH_TOO_LOW
        self._abort_in_gap(answer)
        if answer.records:
            self._log.append_as_follower(answer.records, self.leader.epoch, self._term)
            self._accepted = None
        self._take_bounds(answer)
        return MirrorResult.APPENDED

    def _abort_in_gap(self, answer: MirrorAnswer) -> None:
        """Aborts the transactions that are open at the start of a gap, before the first batch behind it is stored: what
        ended them may lie in the gap (M7). That batch may begin in the gap; without a batch it is known only at the
        source's end that none does.

        The markers are in the epoch of that batch: another replica may have records of the gap, of any epoch up to it.
        """
        log, first = self._log, answer.first
        if first is None and answer.high_watermark == self._skip_to:
            first = FirstBatch(self._skip_to, log.leader_epoch)
        if first is not None and log.log_end_offset < (end := min(first.base_offset, self._skip_to)):
            log.abort_in_gap(end, first.leader_epoch, self.leader.epoch, self._term)

    def _is_current(self, fetch: MirrorFetch) -> bool:
        """Returns True if the request is the last one, and the log has not changed since."""
        return fetch is self._sent and fetch == self._next_fetch()

    def _take_bounds(self, answer: MirrorAnswer) -> None:
        """Takes the source's log start, if retention is the source's (M5). Its high watermark says only how far the
        mirror is behind: the target's own in-sync replicas decide what consumers see."""
        self._source_start, self.source_end = answer.log_start_offset, answer.high_watermark
        self._follow_retention()
        self.status = MirrorStatus.COPYING if self.lag else MirrorStatus.FOLLOWING

    def _follow_retention(self) -> None:
        """Raises the log start to the source's, at most to the high watermark: a member of the ISR that ends below its
        leader's log start would delete all that it has, and may be the next leader."""
        offset = min(self._source_start, self._log.high_watermark)
        if self._rules.follows_retention and offset > self._log.log_start_offset:
            self._log.advance_log_start(offset)

    def _diverged(self, diverging: EpochEndOffset) -> MirrorResult:
        """Truncates the log to where it may agree with the source's, which has lost records in an unclean election
        (M6). What is removed is set aside first: it may be the only copy."""
        log = self._log
        if diverging.end_offset < 0:
            return MirrorResult.REFUSED
        if self._rules.stops_at_divergence and self._accepted is not MirrorStatus.DIVERGED:
            self.status = MirrorStatus.DIVERGED
            return MirrorResult.STOPPED
        offset = truncation_offset(log, diverging)
        end = log.log_end_offset
        first = max(offset, log.log_start_offset)
        if first < end:
            self._set_aside(first)
        if offset < log.log_start_offset:
            log.restart_at(offset, self.leader.epoch, self._term)
        else:
            log.truncate_to(offset, self.leader.epoch, self._term)
        self._skip_to, self._source_start = 0, -1
        if first < end:
            self.cut = Cut(log.log_end_offset, end)
        return MirrorResult.CUT

    def notice(self, result: MirrorResult) -> None:
        """Applies to the leader what a change of the log means for its followers: after a cut, what they have reported
        is forgotten (M6)."""
        if result in (MirrorResult.CUT, MirrorResult.RESTARTED):
            self.leader.truncated()
        elif result is MirrorResult.APPENDED:
            self.leader.advance_high_watermark()

    # -- out of range --------------------------------------------------------------------------------------------

    def on_bounds(self, fetch: MirrorFetch, log_start_offset: int, topic_id: UUID | None) -> MirrorResult:
        """Decides why `fetch` was out of range, by the start of the source's log and the id of its topic; None if the
        topic was deleted.

        The source has deleted what comes next (M7): a mirror that has copied nothing yet begins at the source's start,
        any other has a gap. Otherwise the source does not know the epoch of the last record here, or ends below the
        position: that is no log that this one has copied (M8).
        """
        if not self._is_current(fetch):
            return MirrorResult.STALE
        if topic_id is None:
            self.status = MirrorStatus.SOURCE_UNREACHABLE
            return MirrorResult.REFUSED
        if not self.on_topic(topic_id):
            return MirrorResult.STOPPED
        log = self._log
        if fetch.offset >= log_start_offset:
            self.status = MirrorStatus.SOURCE_REPLACED
            return MirrorResult.STOPPED
        if log.log_end_offset in (0, self.begins):
            log.restart_at(log_start_offset, self.leader.epoch, self._term)
            self.begins = log_start_offset
            return MirrorResult.RESTARTED
        if self._rules.stops_at_gap and self._accepted is not MirrorStatus.GAP:
            self.status = MirrorStatus.GAP
            return MirrorResult.STOPPED
        self.gap = MirrorGap(fetch.offset, log_start_offset)
        return MirrorResult.GAP_FOUND

    def skip_gap(self) -> None:
        """Continues behind the gap, once it is stored."""
        if self.gap is not None:
            self._skip_to, self.gap = self.gap.end, None
