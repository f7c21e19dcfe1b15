"""A member of a registry group: the Kafka paper's consumer coordination (section 3.2), over the coordination seam.

Members register ephemerally under `/consumers/<group>/ids`. On any change of members, topics or brokers, each computes
the same assignment (`assignment`) and makes it true: it lets go of what is no longer its own, then claims what is
(`ownership`). Differences from the paper: partitions that stay with their owner are kept, so that they are read
without a pause; and a member in conflict is woken when the other lets go, at the latest after the back-off.

    state        event                                   next
    outside      register                                unbalanced
    unbalanced   revoke, release, claim: all done        balanced
    unbalanced   claim meets another's path (conflict)   unbalanced; nothing claimed is kept; waits; tries again
    balanced     watch (members, topics, brokers)        unbalanced
    any          suspended for a third of the session    outside in effect: everything is lost; when the connection
                 time-out                                is back in the same session: unbalanced
    any          session expired                         outside (a new session, a new member id)
    any          close                                   revoke, release, deregister

What a member owns no other one owns, as long as clocks run alike: an owner path ends with its owner's session, and the
owner has given up its partitions before (a third of the session time-out after the connection went, while the server
waits for a whole one). Where even that fails (a stopped process), commits are refused: each carries the checks of
`OwnerPaths.guards` in its transaction.

A topic that was deleted and created again is another one: its partitions are revoked and claimed again. A commit of the
former's offsets is refused in its transaction (`topic_ids`), and stored offsets of the former are passed over.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from uuid import uuid4

from ...cluster import paths
from ...errors import CoordinationError, ErrorCode, KlammError
from ...interfaces.coordination import (
    BadVersionError,
    Coordination,
    CoordinationUnavailableError,
    NodeExistsError,
    NoNodeError,
    SessionEvent,
    SessionExpiredError,
)
from ...interfaces.offsets import CommittedOffset, OffsetStore
from ...records.partition import TopicPartition
from ..coordinator.group_view import MemberNode, WatchSet, read_view
from ..group_protocol_lock import GroupProtocol, acquire
from .assignment import assign
from .member import LostOwnershipError, MemberListener, Owned
from .ownership import ConflictError, OwnerPaths
from .topic_ids import TopicIds, commit_current, is_of

_log = logging.getLogger(__name__)

SETTLE_S = 0.03
"""Changes that come this close together make one rebalance."""
REREAD_S = 30.0
"""Watches lose nothing; a look at the group now and then costs little and bounds every wait."""
CLOSE_S = 30.0
RESTART_S = 10.0


@dataclass(frozen=True)
class RegistrySettings:
    """`subscription`: the number of streams by topic. `retries` times `backoff_s` should exceed the session time-out,
    since a dead owner's paths stay that long; `tries` sees to it."""

    group: str
    subscription: Mapping[str, int]
    retries: int = 10
    backoff_s: float = 2.0

    def tries(self, session_timeout_s: float) -> int:
        """Conflicts in a row before an error is reported."""
        needed = math.ceil(1.5 * session_timeout_s / self.backoff_s) if self.backoff_s > 0 else self.retries
        return max(self.retries, needed)


def new_member_name() -> str:
    """Unique to a session, so that no guard of an old one passes."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:12]}"


class RegistryMember:
    """A `GroupMember` (`member`). The coordination is the caller's: started, and closed after this."""

    def __init__(
        self,
        coordination: Coordination,
        offsets: OffsetStore,
        settings: RegistrySettings,
        listener: MemberListener,
        *,
        clock: Callable[[], float] = time.monotonic,
        new_name: Callable[[], str] = new_member_name,
    ) -> None:
        self.group = settings.group
        self.member_id = ""
        self.generation = -1
        self.rebalances = 0
        self._coordination = coordination
        self._offsets = offsets
        self._topics = TopicIds(coordination)
        self._settings = settings
        self._listener = listener
        self._clock = clock
        self._new_name = new_name
        self._watches = WatchSet(coordination, self._changed)
        self._wake = threading.Event()
        self._closing = threading.Event()
        # Held while ownership changes and while a commit is on its way: a release waits for the commit, not the other
        # way round.
        self._lock = threading.RLock()
        self._owned: dict[TopicPartition, Owned] = {}
        self._claims: OwnerPaths | None = None
        self._session = 0
        self._suspended_since: float | None = None
        self._expired = False
        self._registered = False
        self._conflicts = 0
        self._thread = threading.Thread(target=self._run, name=f"klamm-member-{settings.group}", daemon=True)

    # What the consumer calls

    def start(self) -> None:
        """Register, and follow the group from now on; raises when the group cannot be entered."""
        self._coordination.on_session(self._session_event)
        self._register()
        self._thread.start()

    def owned(self) -> dict[TopicPartition, Owned]:
        with self._lock:
            return dict(self._owned)

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        if not offsets:
            return
        with self._lock:
            claims = self._claims
            foreign = [str(p) for p in offsets if p not in self._owned]
            if claims is None or foreign:
                raise LostOwnershipError(f"group {self.group!r}: not owned by this member: {', '.join(foreign[:5])}")
            try:
                gone = commit_current(
                    self._offsets, self._topics, self.group, self._named(offsets), claims.guards(offsets)
                )
            except (NoNodeError, BadVersionError, SessionExpiredError) as error:
                self._wake.set()
                raise LostOwnershipError(f"group {self.group!r}: lost to another member: {error}") from error
        if gone:
            self._wake.set()
            names = ", ".join(sorted({p.topic for p in gone}))
            raise LostOwnershipError(
                f"group {self.group!r}: offsets of deleted topics were not stored: {names}",
                ErrorCode.unknown_topic_or_partition,
            )

    def _named(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> dict[TopicPartition, CommittedOffset]:
        """With the ids of the topics that they were read in, else of those that were claimed."""
        return {p: replace(c, topic_id=c.topic_id or self._owned[p].topic_id) for p, c in offsets.items()}

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        stored = self._offsets.fetch(self.group, list(partitions))
        ids = self._topics.now({p.topic for p in stored})
        return {p: found for p, found in stored.items() if found.offset >= 0 and is_of(found, ids.get(p.topic))}

    def close(self) -> None:
        """Everything is revoked and released and the member deregistered when this returns."""
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_S)
            if self._thread.is_alive():
                _log.warning("member %s of %r did not stop within %.0f s", self.member_id, self.group, CLOSE_S)
        self._offsets.close()

    # Called by the coordination

    def _changed(self) -> None:
        self._wake.set()

    def _session_event(self, event: SessionEvent) -> None:
        self._suspended_since = self._clock() if event is SessionEvent.SUSPENDED else None
        if event is SessionEvent.EXPIRED:
            self._expired = True
        self._wake.set()

    # The member's own thread

    def _run(self) -> None:
        wait = 0.0
        while not self._closing.is_set():
            self._wake.wait(self._until_lost(wait))
            if self._closing.is_set():
                break
            try:
                wait = self._step()
            except SessionExpiredError:
                self._expired, wait = True, SETTLE_S
            except NoNodeError:
                # Our registration, or the group itself, was deleted under us.
                self._registered, wait = False, SETTLE_S
            except CoordinationUnavailableError as error:
                # What we own we go on reading; a suspension that lasts is told by the session's events.
                _log.warning("member %s of %r: %s", self.member_id, self.group, error)
                wait = self._settings.backoff_s
            except Exception as error:  # the thread must live on; whatever it is, the consumer hears of it
                self._report(error)
                wait = self._settings.backoff_s
        self._leave()

    def _until_lost(self, wait: float) -> float:
        """No longer than until a suspension costs us our partitions."""
        since = self._suspended_since
        if since is None or not self._owned:
            return wait
        return max(0.0, min(wait, since + self._coordination.session_timeout_s / 3 - self._clock()))

    def _step(self) -> float:
        """One look at the world; returns how long to wait for the next, unless woken."""
        if self._wake.is_set():
            self._closing.wait(SETTLE_S)
        self._wake.clear()  # before the state is read, so that no change is missed
        since = self._suspended_since
        if since is not None:
            if self._clock() - since >= self._coordination.session_timeout_s / 3:
                self._lose()
            return REREAD_S
        if self._expired or self._coordination.session_id != self._session:
            self._renew()
        elif not self._registered:
            self._lose()
            self._register()
        return self._rebalance()

    def _renew(self) -> None:
        """After the session's end: nothing is ours; a new session, a new name."""
        self._lose()
        self._watches.forget()
        self._expired = False
        try:
            self._coordination.restart(RESTART_S)
        except CoordinationError:
            self._expired = True
            raise
        self._register()

    def _register(self) -> None:
        self._drop_registration()
        self._session = self._coordination.session_id
        name = self._new_name()
        node = MemberNode(subscription=dict(self._settings.subscription), timestamp=str(int(time.time() * 1000)))
        acquired = acquire(self._coordination, self.group, GroupProtocol.REGISTRY, name, node.encode())
        with self._lock:
            self.member_id = name
            self._claims = OwnerPaths(self._coordination, self.group, name, acquired.path)
            self._registered = True
        self._wake.set()

    def _drop_registration(self) -> None:
        """Of a former name in a session that still lives, nothing may stay: it would own partitions for nobody."""
        claims = self._claims
        if claims is not None and self._session == self._coordination.session_id:
            claims.release_all_but(())
            with contextlib.suppress(NoNodeError):
                self._coordination.delete(paths.group_member(self.group, self.member_id))
        self._claims = None

    def _rebalance(self) -> float:
        claims = self._claims
        if claims is None:
            raise NoNodeError(f"member of {self.group!r} is not registered")
        self._watches.keep(self._watched())
        view = read_view(self._coordination, self.group, self._settings.subscription)
        if self.member_id not in view.subscriptions:
            raise NoNodeError(f"member {self.member_id} of {self.group!r} is not registered any more")
        plan = assign(self.member_id, view.subscriptions, view.partitions)
        self.generation = max(self.generation, view.generation)
        gone = [
            p
            for p, owned in self._owned.items()
            if plan.get(p) != owned.stream or view.topic_ids.get(p.topic) != owned.topic_id
        ]
        missing = {p: stream for p, stream in plan.items() if p not in self._owned or p in gone}
        if gone:
            self._revoke(claims, gone)
            if self._wake.is_set():
                return 0.0  # the group has changed while we let go: look again before claiming
        claims.release_all_but({*self._owned, *missing})
        if not missing:
            self._count(bool(gone))
            return REREAD_S
        try:
            claimed = [replace(o, topic_id=view.topic_ids[o.partition.topic]) for o in claims.claim(missing)]
        except ConflictError as conflict:
            return self._wait_for(claims, conflict)
        self._conflicts = 0
        with self._lock:
            self._owned |= {owned.partition: owned for owned in claimed}
        self._count(True)
        self._listener.on_assigned(claimed)
        return REREAD_S

    def _watched(self) -> set[str]:
        topics = {paths.topic(topic) for topic in self._settings.subscription}
        return {paths.group_ids(self.group), paths.BROKER_IDS, *topics}

    def _wait_for(self, claims: OwnerPaths, conflict: ConflictError) -> float:
        """Wait for others to let go; they wake us when they do."""
        self._conflicts += 1
        tries = self._settings.tries(self._coordination.session_timeout_s)
        if self._conflicts >= tries:
            self._conflicts = 0
            self._report(CoordinationError(f"group {self.group!r}: {conflict} after {tries} tries"))
        held = {claims.path(p) for p in conflict.partitions}
        self._watches.keep(self._watched() | held)
        if not all(self._coordination.exists(path) for path in held):
            self._wake.set()
        return self._settings.backoff_s

    def _revoke(self, claims: OwnerPaths, gone: Iterable[TopicPartition]) -> None:
        gone = list(gone)
        self._listener.on_revoked(gone)
        with self._lock:
            for partition in gone:
                self._owned.pop(partition, None)
            claims.release(gone)

    def _lose(self) -> None:
        with self._lock:
            lost = list(self._owned)
            self._owned.clear()
        if lost:
            _log.warning("member %s of %r lost %d partition(s)", self.member_id, self.group, len(lost))
            self._listener.on_lost(lost)

    def _leave(self) -> None:
        claims = self._claims
        try:
            if claims is not None and not self._expired:
                self._revoke(claims, list(self._owned))
                self._coordination.delete(paths.group_member(self.group, self.member_id))
        except (NoNodeError, NodeExistsError, CoordinationError) as error:
            _log.warning("member %s of %r ends with its session: %s", self.member_id, self.group, error)
            self._lose()
        self._watches.forget()

    def _count(self, changed: bool) -> None:
        self.rebalances += changed

    def _report(self, error: Exception) -> None:
        _log.warning("member %s of %r: %s", self.member_id, self.group, error)
        shown = error if isinstance(error, KlammError) else KlammError(f"group member failed: {error!r}")
        self._listener.on_error(shown)
