"""A member of a registry group: the Kafka paper's consumer coordination (section 3.2) through the coordination.

Members register with ephemeral paths under `/consumers/<group>/ids`. After each change of members, topics or brokers,
every member computes the same assignment (`assignment`) and applies it: it releases the partitions that are no longer
its own, then claims its new ones (`ownership`). Differences from the paper: partitions that stay with their owner are
read without a pause; and a member that waits for another's release is woken by it, at the latest after the back-off.

Every change of state goes through `REGISTRY_STATES`:

- "All claimed": the member has revoked and released the partitions it no longer owns, and has claimed the others.
- "Conflict": another member still owns one of the partitions. None of the claim is kept; the member waits and tries
  again.
- "Suspended": the connection was lost for a third of the session time-out. All partitions are lost; once the connection
  is back in the same session, the member rebalances.
- "Session expired", "deregistered" (the member's path was deleted): all partitions are lost. The member registers with
  a new member id, after an expiry in a new session.
- "Close": revokes and releases all partitions, then deletes the registration.

A partition has one owner at a time as long as clocks run at the same rate: an owner path ends with its owner's session,
and the owner has given up its partitions before that (a third of the session time-out after it lost the connection,
while the server waits for the whole time-out). If even that fails (a stopped process), commits are refused: each has
the checks of `OwnerPaths.guards` in its transaction.

A topic that was deleted and created again is a different topic: its partitions are revoked and claimed again. A commit
of offsets of the deleted topic is refused in its transaction (`topic_ids`), and stored offsets of the deleted topic are
ignored.
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
from enum import Enum
from typing import Final
from uuid import uuid4

from ...cluster.tree import paths
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
from ...state_table import StateTable
from ..coordinator.group_view import MemberNode, WatchSet, read_view
from ..group_protocol_lock import GroupProtocol, acquire
from .assignment import assign
from .member import LostOwnershipError, MemberListener, Owned
from .ownership import ConflictError, OwnerPaths
from .topic_ids import TopicIds, commit_current, is_of

_log = logging.getLogger(__name__)

SETTLE_S = 0.03
"""Changes within this time lead to one rebalance."""
REREAD_S = 30.0
"""Upper bound of every wait: the group is read again after it, although watches report every change."""
CLOSE_S = 30.0
RESTART_S = 10.0


class RegistryState(Enum):
    UNREGISTERED = "unregistered"
    UNBALANCED = "unbalanced"
    BALANCED = "balanced"
    CLOSED = "closed"


class RegistryEvent(Enum):
    REGISTERED = "registered"
    REBALANCE = "group, topics or brokers changed"
    CLAIMED = "all claimed"
    CONFLICT = "conflict"
    SUSPENDED = "suspended"
    EXPIRED = "session expired"
    DEREGISTERED = "deregistered"
    CLOSE = "close"


REGISTRY_STATES: Final = StateTable(
    "registry member", RegistryState, RegistryEvent,
    """
    state         event                             next state
    unregistered  registered                        unbalanced
    unregistered  suspended                         unregistered
    unregistered  session expired                   unregistered
    unregistered  deregistered                      unregistered
    unregistered  close                             closed
    unbalanced    group, topics or brokers changed  unbalanced
    unbalanced    all claimed                       balanced
    unbalanced    conflict                          unbalanced
    unbalanced    suspended                         unbalanced
    unbalanced    session expired                   unregistered
    unbalanced    deregistered                      unregistered
    unbalanced    close                             closed
    balanced      group, topics or brokers changed  unbalanced
    balanced      suspended                         unbalanced
    balanced      session expired                   unregistered
    balanced      deregistered                      unregistered
    balanced      close                             closed
    """,
)  # fmt: skip


@dataclass(frozen=True)
class RegistrySettings:
    """`subscription`: the number of streams by topic. `retries` times `backoff_s` should exceed the session
    time-out, since a dead owner's paths exist that long; `tries` raises the number if it does not."""

    group: str
    subscription: Mapping[str, int]
    retries: int = 10
    backoff_s: float = 2.0

    def tries(self, session_timeout_s: float) -> int:
        """Returns the number of conflicts in a row after which an error is reported."""
        needed = math.ceil(1.5 * session_timeout_s / self.backoff_s) if self.backoff_s > 0 else self.retries
        return max(self.retries, needed)


def new_member_name() -> str:
    """Returns a name that is unique to a session, so that the guards of an earlier session fail."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:12]}"


class RegistryMember:
    """A `GroupMember` (`member`). The caller starts the coordination before, and closes it after this. `state` is
    changed by `start`, then by the member's own thread only."""

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
        self.state: RegistryState = REGISTRY_STATES.initial
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
        # Held while ownership changes and during a commit, so that a partition is released only after a commit under
        # way.
        self._lock = threading.RLock()
        self._owned: dict[TopicPartition, Owned] = {}
        self._claims: OwnerPaths | None = None
        self._session = 0
        self._suspended_since: float | None = None
        self._expired = False
        self._conflicts = 0
        self._thread = threading.Thread(target=self._run, name=f"klamm-member-{settings.group}", daemon=True)

    # Called by the consumer

    def start(self) -> None:
        """Registers, and starts the thread that follows the group; raises if the member cannot be registered."""
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
        """Returns the offsets with topic ids: their own, else the id of the topic that was claimed."""
        return {p: replace(c, topic_id=c.topic_id or self._owned[p].topic_id) for p, c in offsets.items()}

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        stored = self._offsets.fetch(self.group, list(partitions))
        ids = self._topics.now({p.topic for p in stored})
        return {p: found for p, found in stored.items() if found.offset >= 0 and is_of(found, ids.get(p.topic))}

    def close(self) -> None:
        """Revokes and releases all partitions and deletes the registration before it returns."""
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

    def _move(self, event: RegistryEvent) -> None:
        self.state = REGISTRY_STATES.next(self.state, event)

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
                # The registration, or the whole group, was deleted by someone else.
                self._move(RegistryEvent.DEREGISTERED)
                wait = SETTLE_S
            except CoordinationUnavailableError as error:
                # Owned partitions are still read; the session's events report a suspension that lasts.
                _log.warning("member %s of %r: %s", self.member_id, self.group, error)
                wait = self._settings.backoff_s
            except Exception as error:  # the thread goes on after any error; the consumer gets it
                self._report(error)
                wait = self._settings.backoff_s
        self._leave()

    def _until_lost(self, wait: float) -> float:
        """Returns `wait`, shortened to the time when a suspension makes the member lose its partitions."""
        since = self._suspended_since
        if since is None or not self._owned:
            return wait
        return max(0.0, min(wait, since + self._coordination.session_timeout_s / 3 - self._clock()))

    def _step(self) -> float:
        """Registers or rebalances as the session and the group require; returns the seconds until the next step, unless
        woken."""
        if self._wake.is_set():
            self._closing.wait(SETTLE_S)
        self._wake.clear()  # before the state is read, so that no change is missed
        since = self._suspended_since
        if since is not None:
            if self._clock() - since >= self._coordination.session_timeout_s / 3:
                self._move(RegistryEvent.SUSPENDED)
                self._lose()
            return REREAD_S
        if self._expired or self._coordination.session_id != self._session:
            self._renew()
        elif self.state is RegistryState.UNREGISTERED:
            self._lose()
            self._register()
        return self._rebalance()

    def _renew(self) -> None:
        """Registers with a new name in a new session, after the session has expired; all partitions are lost."""
        self._move(RegistryEvent.EXPIRED)
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
        self._move(RegistryEvent.REGISTERED)
        self._wake.set()

    def _drop_registration(self) -> None:
        """Deletes the paths of the member's previous name if its session is still alive: they would own partitions
        that no member reads."""
        claims = self._claims
        if claims is not None and self._session == self._coordination.session_id:
            claims.release_all_but(())
            with contextlib.suppress(NoNodeError):
                self._coordination.delete(paths.group_member(self.group, self.member_id))
        self._claims = None

    def _rebalance(self) -> float:
        """Applies the present assignment; returns the seconds to wait before the next step."""
        self._move(RegistryEvent.REBALANCE)
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
                return 0.0  # the group changed during the revocation: read it again before claiming
        claims.release_all_but({*self._owned, *missing})
        if not missing:
            self._move(RegistryEvent.CLAIMED)
            self._count(bool(gone))
            return REREAD_S
        try:
            claimed = [replace(o, topic_id=view.topic_ids[o.partition.topic]) for o in claims.claim(missing)]
        except ConflictError as conflict:
            return self._wait_for(claims, conflict)
        self._conflicts = 0
        with self._lock:
            self._owned |= {owned.partition: owned for owned in claimed}
        self._move(RegistryEvent.CLAIMED)
        self._count(True)
        self._listener.on_assigned(claimed)
        return REREAD_S

    def _watched(self) -> set[str]:
        topics = {paths.topic(topic) for topic in self._settings.subscription}
        return {paths.group_ids(self.group), paths.BROKER_IDS, *topics}

    def _wait_for(self, claims: OwnerPaths, conflict: ConflictError) -> float:
        """Returns the back-off; the release of a partition in conflict ends the wait earlier, through a watch."""
        self._move(RegistryEvent.CONFLICT)
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
        self._move(RegistryEvent.CLOSE)
        claims = self._claims
        try:
            if claims is not None and not self._expired:
                self._revoke(claims, list(self._owned))
                self._coordination.delete(paths.group_member(self.group, self.member_id))
        except (NoNodeError, NodeExistsError, CoordinationError) as error:
            _log.warning(
                "member %s of %r stays registered until its session ends: %s", self.member_id, self.group, error
            )
            self._lose()
        self._watches.forget()

    def _count(self, changed: bool) -> None:
        self.rebalances += changed

    def _report(self, error: Exception) -> None:
        _log.warning("member %s of %r: %s", self.member_id, self.group, error)
        shown = error if isinstance(error, KlammError) else KlammError(f"group member failed: {error!r}")
        self._listener.on_error(shown)
