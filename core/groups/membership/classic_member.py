"""A member of a classic group: Kafka's group protocol from the client's side, together with any other client.

    state     event                                                   next
    outside   join and sync answered                                  joined (`on_assigned`)
    joined    heartbeat says REBALANCE_IN_PROGRESS                    revoke everything, join again (eager rebalance)
    joined    as leader: a topic of the group has other partitions    the same; the broker tells the other members
    joined    heartbeat says that member or generation is unknown     lose everything, join anew
    joined    no heartbeat answered for a session time-out            lose everything, join anew
    joined    not polled for `max.poll.interval.ms`                   lose everything, leave; joins when polled again
    any       close                                                   revoke, leave

Heartbeats have a thread of their own, so that the member lives while the application finishes what it has in hand.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from ...errors import BrokerError, ErrorCode, KlammError
from ...interfaces.offsets import CommittedOffset
from ...records.partition import TopicPartition
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
LOOK_S = 60.0
"""The longest wait of the member's thread; every event wakes it, this only bounds the wait."""
_UNKNOWN = {ErrorCode.unknown_member_id, ErrorCode.illegal_generation, ErrorCode.fenced_instance_id}
_REJOIN = {*_UNKNOWN, ErrorCode.rebalance_in_progress}


class ClassicMember:
    """A `GroupMember` (`member`). `topics` reads and watches the group's topics while this member leads; `idle_s()`
    gives the seconds since the application last polled."""

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
        # Member id and generation; replaced as a whole, so that no thread sees one of each.
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
        self._verdict: ErrorCode | None = None
        self._heard = 0.0
        name = f"klamm-member-{settings.group}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._heart = threading.Thread(target=self._beat, name=f"{name}-heart", daemon=True)

    @property
    def member_id(self) -> str:
        return self._identity[0]

    @property
    def generation(self) -> int:
        return self._identity[1]

    def start(self) -> None:
        self._thread.start()
        self._heart.start()

    def owned(self) -> dict[TopicPartition, Owned]:
        return dict(self._owned)

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        if not offsets:
            return
        # In this order: what is owned after the identity was read was owned under it, or the broker refuses it.
        identity = self._identity
        foreign = [str(p) for p in offsets if p not in self._owned]
        if foreign:
            raise LostOwnershipError(f"group {self.group!r}: not owned by this member: {', '.join(foreign[:5])}")
        try:
            self._client.commit_offsets(self.group, offsets, member_id=identity[0], generation=identity[1])
        except BrokerError as error:
            if error.code not in _REJOIN:
                raise
            self._judge(error.code, identity)
            raise LostOwnershipError(f"group {self.group!r}: {error}", error.code) from error

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        return self._client.fetch_offsets(self.group, list(partitions))

    def close(self) -> None:
        self._closing.set()
        self._wake.set()
        if self.member_id and not self._joined.is_set():
            self._send_leave()  # answers a join that waits for the rest of the group
        self._joined.set()
        for thread in (self._thread, self._heart):
            if thread.is_alive() and threading.current_thread() is not thread:
                thread.join(CLOSE_S)
                if thread.is_alive():
                    _log.warning("member of %r did not stop within %.0f s", self.group, CLOSE_S)

    # The heart

    def _beat(self) -> None:
        while not self._closing.is_set():
            self._joined.wait(LOOK_S)
            if self._closing.wait(self._settings.heartbeat_s) or not self._joined.is_set():
                continue
            identity = self._identity
            try:
                self._calls.heartbeat(*identity)
                self._heard = self._clock()
            except BrokerError as error:
                self._judge(error.code, identity)
            except KlammError as error:
                _log.warning("heartbeat of %r: %s", self.group, error)
            self._watch_time(identity)

    def _watch_time(self, identity: tuple[str, int]) -> None:
        if self._clock() - self._heard > self._settings.session_timeout_s:
            self._judge(ErrorCode.unknown_member_id, identity)
        if self._idle_s() > self._settings.max_poll_interval_s:
            _log.warning("member %s of %r leaves: not polled for max.poll.interval.ms", identity[0], self.group)
            self._send_leave()
            self._judge(ErrorCode.unknown_member_id, identity)

    def _judge(self, code: ErrorCode, identity: tuple[str, int]) -> None:
        """`identity` is the one that the answer was about: one about a former membership says nothing of this one,
        and to give up a good membership for it would make the group wait for its session's end."""
        if code not in _REJOIN:
            _log.warning("heartbeat of %r: %s", self.group, code.name)
        elif identity == self._identity and self._joined.is_set():
            self._verdict = code
            self._wake.set()

    # The member's own thread

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._follow()
            except BrokerError as error:
                self._refused(error)
            except Exception as error:  # the thread must live on; whatever it is, the consumer hears of it
                self._report(error)
        self._leave()

    def _follow(self) -> None:
        """Join, then wait for the next verdict: of a heartbeat, or of the topics that a leader watches."""
        while self._idle_s() > self._settings.max_poll_interval_s:
            if self._closing.wait(RETRY_S):
                return
        self._join()
        while not self._wake.wait(self._topics.wait_s(LOOK_S)):
            if self._topics.changed():
                self._judge(ErrorCode.rebalance_in_progress, self._identity)
        self._joined.clear()
        if self._closing.is_set():
            return
        verdict, self._verdict = self._verdict, None
        self._wake.clear()
        if verdict is ErrorCode.rebalance_in_progress:
            self._joined.set()  # the heart beats on while the application finishes what it has in hand
            self._listener.on_revoked(list(self._owned))
            self._joined.clear()
            self._owned = {}
        else:
            self._lose()

    def _join(self) -> None:
        self._topics.stop()
        joined = self._calls.join(self.member_id, self._told_id)
        self._identity = (joined.member_id, joined.generation)
        share = self._calls.sync(joined, self._assign(joined) if joined.leads else {})
        self._owned = self._by_stream(decode_assignment(share), joined.generation)
        self._heard = self._clock()
        self._wake.clear()
        if self._closing.is_set():
            self._wake.set()
        self._joined.set()
        self.rebalances += 1
        self._listener.on_assigned(list(self._owned.values()))

    def _told_id(self, member_id: str) -> None:
        self._identity = (member_id, -1)

    def _assign(self, joined: Joined) -> dict[str, bytes]:
        """What the leader owes the group."""
        subscriptions = {member: decode_subscription(data) for member, data in joined.subscriptions.items()}
        topics = {topic for theirs in subscriptions.values() for topic in theirs}
        shares = ASSIGNORS[joined.protocol](subscriptions, self._topics.read(topics))
        return {member: encode_assignment(share) for member, share in shares.items()}

    def _by_stream(self, partitions: Iterable[TopicPartition], generation: int) -> dict[TopicPartition, Owned]:
        """Our share, divided again among our own streams."""
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
        elif error.code is not ErrorCode.rebalance_in_progress:
            self._report(error)

    def _lose(self) -> None:
        lost, self._owned = list(self._owned), {}
        self._identity = ("", -1)
        if lost:
            self._listener.on_lost(lost)

    def _leave(self) -> None:
        if self._owned:
            self._listener.on_revoked(list(self._owned))
        if self.member_id:
            self._send_leave()
        self._owned = {}

    def _send_leave(self) -> None:
        try:
            self._calls.leave(self.member_id)
        except KlammError as error:
            _log.info("group %r was not left: %s", self.group, error)

    def _report(self, error: Exception) -> None:
        _log.warning("member of %r: %s", self.group, error)
        self._listener.on_error(error if isinstance(error, KlammError) else KlammError(f"group member: {error!r}"))
        self._closing.wait(RETRY_S)
