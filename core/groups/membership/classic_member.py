"""A member of a classic group: the client's side of Kafka's group protocol, compatible with any other client.

Every change of state goes through `MEMBER_STATES`, whose states are those of Kafka's AbstractCoordinator:

- "Synced": the assignment has arrived; `on_assigned` is called.
- "Rebalance": a heartbeat or commit was answered REBALANCE_IN_PROGRESS, or this member leads the group and a topic of
  the group has other partitions (the broker then tells the other members). All partitions are revoked (`on_revoked`),
  then the member joins again with its member id (eager rebalance).
- "Membership lost": the broker does not know the member or its generation, no heartbeat was answered for the session
  time-out, or the application did not poll for `max.poll.interval.ms` (then the member leaves, and joins when it is
  polled again). All partitions are lost (`on_lost`), and the member joins as a new one.
- "Failed": a request or a listener raised another error; it is reported, and the member joins again.
- "Close" revokes all partitions and leaves the group.

Heartbeats have their own thread, so that the member stays alive while the application processes the records it has.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Final

from ...errors import BrokerError, ErrorCode, KlammError
from ...interfaces.offsets import CommittedOffset
from ...records.partition import TopicPartition
from ...state_table import StateTable
from .assignment import Stream, ranges
from .assignors import ASSIGNORS
from .classic_calls import ClassicCalls, ClassicSettings, CoordinatorClient, Joined
from .consumer_protocol import decode_assignment, decode_subscription, encode_assignment
from .member import LostOwnershipError, MemberListener, Owned
from .topic_watch import TopicWatch

_log = logging.getLogger(__name__)

RETRY_S = 0.5
REJOIN_S = 0.05
CLOSE_S = 30.0
LONGEST_WAIT_S = 60.0
"""Upper bound of the waits of the member's threads; every event ends them earlier."""
_UNKNOWN = {ErrorCode.unknown_member_id, ErrorCode.illegal_generation, ErrorCode.fenced_instance_id}
_REJOIN = {*_UNKNOWN, ErrorCode.rebalance_in_progress}


class MemberState(Enum):
    UNJOINED = "unjoined"
    PREPARING_REBALANCE = "preparing rebalance"
    COMPLETING_REBALANCE = "completing rebalance"
    STABLE = "stable"
    CLOSED = "closed"


class MemberEvent(Enum):
    JOIN = "JoinGroup sent"
    JOINED = "JoinGroup answered"
    SYNCED = "synced"
    REBALANCE = "rebalance"
    LOST = "membership lost"
    FAILED = "failed"
    CLOSE = "close"


MEMBER_STATES: Final = StateTable(
    "group member", MemberState, MemberEvent,
    """
    state                 event               next state
    unjoined              JoinGroup sent      preparing rebalance
    unjoined              membership lost     unjoined
    unjoined              failed              unjoined
    unjoined              close               closed
    preparing rebalance   JoinGroup answered  completing rebalance
    preparing rebalance   membership lost     unjoined
    preparing rebalance   failed              unjoined
    completing rebalance  synced              stable
    completing rebalance  membership lost     unjoined
    completing rebalance  failed              unjoined
    stable                rebalance           unjoined
    stable                membership lost     unjoined
    stable                failed              unjoined
    stable                close               closed
    """,
)  # fmt: skip


class ClassicMember:
    """A `GroupMember` (`member`). `topics` reads and watches the group's topics while this member leads the group;
    `idle_s()` returns the seconds since the application last polled. `state` is changed by the member's own thread
    only."""

    def __init__(
        self,
        client: CoordinatorClient,
        settings: ClassicSettings,
        listener: MemberListener,
        topics: TopicWatch,
        *,
        idle_s: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.group = settings.group
        self.rebalances = 0
        self.state: MemberState = MEMBER_STATES.initial
        # Member id and generation in one tuple, so that every thread reads a consistent pair.
        self._identity = ("", -1)
        self._client = client
        self._settings = settings
        self._calls = ClassicCalls(client, settings)
        self._listener = listener
        self._topics = topics
        self._idle_s = idle_s
        self._clock = clock
        self._owned: dict[TopicPartition, Owned] = {}
        self._joined = threading.Event()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._rejoin_code: ErrorCode | None = None
        self._last_response_s = 0.0
        name = f"klamm-member-{settings.group}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._heartbeat_thread = threading.Thread(target=self._send_heartbeats, name=f"{name}-heartbeat", daemon=True)

    @property
    def member_id(self) -> str:
        return self._identity[0]

    @property
    def generation(self) -> int:
        return self._identity[1]

    def start(self) -> None:
        self._thread.start()
        self._heartbeat_thread.start()

    def owned(self) -> dict[TopicPartition, Owned]:
        return dict(self._owned)

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        if not offsets:
            return
        # In this order: partitions owned after the identity was read were owned under it, or the broker refuses the
        # commit.
        identity = self._identity
        foreign = [str(p) for p in offsets if p not in self._owned]
        if foreign:
            raise LostOwnershipError(f"group {self.group!r}: not owned by this member: {', '.join(foreign[:5])}")
        try:
            self._client.commit_offsets(self.group, offsets, member_id=identity[0], generation=identity[1])
        except BrokerError as error:
            if error.code not in _REJOIN:
                raise
            self._rejoin(error.code, identity)
            raise LostOwnershipError(f"group {self.group!r}: {error}", error.code) from error

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        return self._client.fetch_offsets(self.group, list(partitions))

    def close(self) -> None:
        self._closing.set()
        self._wake.set()
        if self.member_id and not self._joined.is_set():
            self._send_leave()  # ends a join that waits for the other members
        self._joined.set()
        for thread in (self._thread, self._heartbeat_thread):
            if thread.is_alive() and threading.current_thread() is not thread:
                thread.join(CLOSE_S)
                if thread.is_alive():
                    _log.warning("member of %r did not stop within %.0f s", self.group, CLOSE_S)

    # The heartbeat thread

    def _send_heartbeats(self) -> None:
        while not self._closing.is_set():
            self._joined.wait(LONGEST_WAIT_S)
            if self._closing.wait(self._settings.heartbeat_s) or not self._joined.is_set():
                continue
            identity = self._identity
            try:
                self._calls.heartbeat(*identity)
                self._last_response_s = self._clock()
            except BrokerError as error:
                self._rejoin(error.code, identity)
            except KlammError as error:
                _log.warning("heartbeat of %r: %s", self.group, error)
            self._check_time_outs(identity)

    def _check_time_outs(self, identity: tuple[str, int]) -> None:
        if self._clock() - self._last_response_s > self._settings.session_timeout_s:
            self._rejoin(ErrorCode.unknown_member_id, identity)
        if self._idle_s() > self._settings.max_poll_interval_s:
            _log.warning("member %s of %r leaves: not polled for max.poll.interval.ms", identity[0], self.group)
            self._send_leave()
            self._rejoin(ErrorCode.unknown_member_id, identity)

    def _rejoin(self, code: ErrorCode, identity: tuple[str, int]) -> None:
        """Makes the member's thread join again because of `code`, if the response was about the present membership.

        `identity` is the one that the response was about. A response about an earlier membership is ignored: if the
        member gave up its present membership because of it, the group would wait until that session expires.
        """
        if code not in _REJOIN:
            _log.warning("heartbeat of %r: %s", self.group, code.name)
        elif identity == self._identity and self._joined.is_set():
            self._rejoin_code = code
            self._wake.set()

    # The member's own thread

    def _move(self, event: MemberEvent) -> None:
        self.state = MEMBER_STATES.next(self.state, event)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._join_until_rebalance()
            except BrokerError as error:
                self._refused(error)
            except Exception as error:  # the thread goes on after any error; the consumer gets it
                self._move(MemberEvent.FAILED)
                self._report(error)
        self._leave()

    def _join_until_rebalance(self) -> None:
        """Joins, then waits until a heartbeat, a commit or a change of the watched topics requires another join."""
        while self._idle_s() > self._settings.max_poll_interval_s:
            if self._closing.wait(RETRY_S):
                return
        self._join()
        while not self._wake.wait(self._topics.wait_s(LONGEST_WAIT_S)):
            if self._topics.changed():
                self._rejoin(ErrorCode.rebalance_in_progress, self._identity)
        self._joined.clear()
        if self._closing.is_set():
            return
        code, self._rejoin_code = self._rejoin_code, None
        self._wake.clear()
        if code is ErrorCode.rebalance_in_progress:
            self._joined.set()  # heartbeats continue while the application processes the records it has
            self._listener.on_revoked(list(self._owned))
            self._joined.clear()
            self._move(MemberEvent.REBALANCE)
            self._owned = {}
        else:
            self._lose()

    def _join(self) -> None:
        self._topics.stop()
        self._move(MemberEvent.JOIN)
        joined = self._calls.join(self.member_id, self._set_member_id)
        self._identity = (joined.member_id, joined.generation)
        self._move(MemberEvent.JOINED)
        share = self._calls.sync(joined, self._assign(joined) if joined.leads else {})
        self._owned = self._by_stream(decode_assignment(share), joined.generation)
        self._move(MemberEvent.SYNCED)
        self._last_response_s = self._clock()
        self._wake.clear()
        if self._closing.is_set():
            self._wake.set()
        self._joined.set()
        self.rebalances += 1
        self._listener.on_assigned(list(self._owned.values()))

    def _set_member_id(self, member_id: str) -> None:
        self._identity = (member_id, -1)

    def _assign(self, joined: Joined) -> dict[str, bytes]:
        """Returns the assignment of each member, by member id; the leader computes it."""
        subscriptions = {member: decode_subscription(data) for member, data in joined.subscriptions.items()}
        topics = {topic for theirs in subscriptions.values() for topic in theirs}
        shares = ASSIGNORS[joined.protocol](subscriptions, self._topics.read(topics))
        return {member: encode_assignment(share) for member, share in shares.items()}

    def _by_stream(self, partitions: Iterable[TopicPartition], generation: int) -> dict[TopicPartition, Owned]:
        """Returns this member's partitions, divided among its streams."""
        owned = {}
        mine = list(partitions)
        for topic in {p.topic for p in mine}:
            streams = [Stream("", n) for n in range(max(1, self._settings.subscription.get(topic, 1)))]
            for stream, numbers in ranges([p.partition for p in mine if p.topic == topic], streams).items():
                for number in numbers:
                    partition = TopicPartition(topic, number)
                    owned[partition] = Owned(partition, stream.number, generation)
        return owned

    def _refused(self, error: BrokerError) -> None:
        self._joined.clear()
        if error.code in _UNKNOWN:
            self._lose()
            self._closing.wait(REJOIN_S)
            return
        self._move(MemberEvent.FAILED)
        if error.code is not ErrorCode.rebalance_in_progress:
            self._report(error)

    def _lose(self) -> None:
        self._move(MemberEvent.LOST)
        lost, self._owned = list(self._owned), {}
        self._identity = ("", -1)
        if lost:
            self._listener.on_lost(lost)

    def _leave(self) -> None:
        self._move(MemberEvent.CLOSE)
        if self._owned:
            self._listener.on_revoked(list(self._owned))
        if self.member_id:
            self._send_leave()
        self._owned = {}

    def _send_leave(self) -> None:
        try:
            self._calls.leave(self.member_id)
        except KlammError as error:
            _log.info("could not leave group %r: %s", self.group, error)

    def _report(self, error: Exception) -> None:
        _log.warning("member of %r: %s", self.group, error)
        self._listener.on_error(error if isinstance(error, KlammError) else KlammError(f"group member: {error!r}"))
        self._closing.wait(RETRY_S)
