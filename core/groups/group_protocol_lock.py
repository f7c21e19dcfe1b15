"""The protocol lock of a consumer group: at any time its members all use one group protocol, registry or classic
(design D6).

The data of `/consumers/<group>` names the protocol; `/consumers/<group>/ids` has one ephemeral path for each holder of
the lock: the members of a registry group, which share it, or the one broker that coordinates the classic members. That
path is named by the broker's incarnation. A successor deletes it in the transaction that acquires the lock, and the
root's version, which every acquisition raises, fences the commits of the deposed coordinator.

To acquire the lock is one transaction that writes the protocol and creates the holder's path, and that holds only while
the root's version is the one that was read. Of two holders that acquire it at once with different protocols, the second
finds a newer version, reads again, and sees the first.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Literal, NamedTuple

import tenacity
from pydantic import BaseModel, ConfigDict, ValidationError

from ..cluster.tree import paths
from ..errors import BrokerError, CoordinationError, ErrorCode
from ..interfaces.coordination import (
    BadVersionError,
    Check,
    Coordination,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    Operation,
    Set,
)

_ACQUIRE_ATTEMPTS = 20
"""Each lost race means that another holder succeeded; this many in a row indicate a defect."""


class GroupProtocol(Enum):
    REGISTRY = "registry"
    CLASSIC = "classic"


class _RootNode(BaseModel):
    """The data of `/consumers/<group>`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    version: int = 1
    protocol: Literal["registry", "classic"]


class Acquired(NamedTuple):
    """`path`: the holder's ephemeral path. `version`: the version of the group's root after the transaction; every
    later holder raises it."""

    path: str
    version: int


def acquire(
    coordination: Coordination,
    group: str,
    protocol: GroupProtocol,
    holder: str,
    data: bytes = b"",
    *,
    guard: Callable[[], Check] | None = None,
) -> Acquired:
    """Acquires the group's lock for `protocol` and creates the ephemeral path `ids/<holder>` with `data`.

    For the classic protocol, earlier holders of that protocol are deleted: the caller now coordinates the group, and
    they no longer do. `guard` returns a check that holds in the same transaction; it is called for each attempt.

    Raises `BrokerError` INCONSISTENT_GROUP_PROTOCOL while holders of the other protocol exist, and for the registry
    protocol `NodeExistsError` if another live session has a holder of this name (if it is this session's own member,
    the lock is held already and that is no error).
    """
    path = paths.group_member(group, holder)
    retry = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(BadVersionError),
        stop=tenacity.stop_after_attempt(_ACQUIRE_ATTEMPTS),
        wait=tenacity.wait_random(0, 0.05),
        reraise=True,
    )
    create = Create(path, data, ephemeral=True)
    return Acquired(path, retry(_acquire_once, coordination, group, protocol, create, guard))


def _acquire_once(
    coordination: Coordination,
    group: str,
    protocol: GroupProtocol,
    create: Create,
    guard: Callable[[], Check] | None,
) -> int:
    """Returns the root's version after the transaction."""
    root = paths.group(group)
    _create_path(coordination, paths.group_ids(group))
    raw, stat = coordination.get(root)
    holders = coordination.children(paths.group_ids(group))
    current = _decode_protocol(root, raw)
    if current is not None and current is not protocol and holders:
        raise BrokerError(
            ErrorCode.inconsistent_group_protocol,
            f"group {group!r} has members that use the {current.value} protocol; members that use {protocol.value} "
            "must wait until those have left, or use another group id",
        )
    node = _RootNode(protocol=protocol.value)
    operations: list[Operation] = [guard()] if guard is not None else []
    operations.append(Set(root, node.model_dump_json().encode(), stat.version))
    holder = create.path.rpartition("/")[2]
    if protocol is GroupProtocol.CLASSIC:
        operations += [Delete(paths.group_member(group, former)) for former in holders]
    elif holder in holders:
        found = coordination.exists(create.path)
        if found is not None and found.ephemeral_owner == coordination.session_id:
            return stat.version
        if found is not None:
            raise NodeExistsError(f"{create.path} exists: a member of another session has this name")
    try:
        coordination.transaction([*operations, create])
    except (NoNodeError, NodeExistsError) as error:
        # A holder's path was removed or created between reading and writing: read again.
        raise BadVersionError(str(error)) from error
    return stat.version + 1


def active_protocol(coordination: Coordination, group: str) -> GroupProtocol | None:
    """Returns the protocol of the lock's present holders; None while there are none."""
    return read_lock(coordination, group)[0]


def last_protocol(coordination: Coordination, group: str) -> GroupProtocol | None:
    """Returns the protocol of the lock's last holders, which may have left; None if it was never acquired."""
    root = paths.group(group)
    try:
        return _decode_protocol(root, coordination.get(root)[0])
    except NoNodeError:
        return None


def read_lock(coordination: Coordination, group: str) -> tuple[GroupProtocol | None, list[Check]]:
    """Returns `active_protocol` and the checks that hold until the lock is acquired again; no checks if it never
    was."""
    root = paths.group(group)
    try:
        raw, stat = coordination.get(root)
    except NoNodeError:
        return None, []
    unchanged = [Check(root, stat.version)]
    try:
        holders = coordination.children(paths.group_ids(group))
    except NoNodeError:
        return None, unchanged
    return _decode_protocol(root, raw) if holders else None, unchanged


def pin_lock(coordination: Coordination, group: str) -> tuple[GroupProtocol | None, list[Check]]:
    """Like `read_lock`, but always returns a check: creates the path of a group whose lock was never acquired. Call
    `unpin_lock` afterwards."""
    _create_path(coordination, paths.group(group))
    return read_lock(coordination, group)


def unpin_lock(coordination: Coordination, group: str) -> None:
    """Removes the path of a group whose lock was never acquired. The path holds nothing, so a failure does no harm."""
    with suppress(CoordinationError):  # usually it is not empty: `ids` stays once the lock was acquired
        coordination.delete(paths.group(group))


def _decode_protocol(path: str, raw: bytes) -> GroupProtocol | None:
    """Returns None for a group that only has offsets."""
    if not raw:
        return None
    try:
        return GroupProtocol(_RootNode.model_validate_json(raw).protocol)
    except ValidationError as error:
        raise CoordinationError(f"{path} should name the group's protocol, but holds {raw[:80]!r}") from error


def _create_path(coordination: Coordination, path: str) -> None:
    if coordination.exists(path) is None:
        try:
            coordination.create(path, make_parents=True)
        except NodeExistsError:
            return


class _Held(NamedTuple):
    """A lock as this broker acquired it in `session`; session 0: no longer held. `path`: the holder's."""

    session: int
    version: int
    path: str


class ClassicGroupLocks:
    """The protocol locks that one broker holds for its classic groups: acquired before the first member joins, released
    after the last member has left.

    The broker's handler of JoinGroup calls `acquire` on a worker thread, then `coordinator.join` and `join_delivered`
    on its loop. If `join_delivered` returns True, or the coordinator reports the group empty, it calls `release` on a
    worker thread. `populated` is `GroupCoordinator.populated`.

    Each acquisition raises the version of the group's root, so the version of this broker's acquisition is a fencing
    token: while the root has that version, no other broker has had a member of the group since (`guard`).
    """

    def __init__(
        self, coordination: Coordination, incarnation: Callable[[], str], populated: Callable[[str], bool]
    ) -> None:
        """`incarnation` names the broker's present registration."""
        self._coordination = coordination
        self._incarnation = incarnation
        self._populated = populated
        self._io = threading.Lock()
        self._counts = threading.Lock()
        self._joining: Counter[str] = Counter()
        self._held: dict[str, _Held] = {}

    def acquire(self, group: str, guard: Callable[[], Check] | None = None) -> None:
        """Blocking. Raises `BrokerError` INCONSISTENT_GROUP_PROTOCOL while the group has registry members, the error of
        `guard` (see `acquire`), and the coordination's other errors. Call `join_delivered` only if this has returned.
        """
        with self._counts:
            self._joining[group] += 1
        try:
            session = self._coordination.session_id
            held = self._held.get(group)
            if held is not None and held.session == session and session:
                return
            with self._io:
                self._acquire(group, guard)
        except BaseException:
            self._join_ended(group)
            raise

    def join_delivered(self, group: str) -> bool:
        """Records that the coordinator has received the join. Returns True if that left the group empty: then call
        `release`.
        """
        return not self._join_ended(group) and not self._populated(group)

    def release(self, group: str) -> None:
        """Releases the lock, unless the group has a member, or a join is in progress, by now. Blocking."""
        with self._io:
            with self._counts:
                if self._joining[group] > 0 or self._populated(group) or group not in self._held:
                    return
                path = self._held[group].path
                self._held[group] = _Held(0, -1, path)  # a join from here on acquires the lock again, after this
            with suppress(NoNodeError):
                self._coordination.delete(path)
            del self._held[group]  # only after the deletion: a call that failed is repeated

    def guard(self, group: str) -> Check | None:
        """Returns the check that holds until another broker, or a registry member, acquires the lock; None while this
        broker does not hold it."""
        held = self._held.get(group)
        return Check(paths.group(group), held.version) if held is not None and held.session else None

    def knows(self, group: str) -> bool:
        """Returns whether this broker holds the lock, or has not released it yet."""
        return group in self._held

    def still_holds(self, group: str) -> bool:
        """Blocking. Returns whether the guard holds now."""
        with self._io:
            held = self._held.get(group)
            return held is None or self._coordination.get(paths.group(group))[1].version == held.version

    def mark_lost(self, group: str) -> None:
        """Records that the guard has failed: another holder has acquired the lock. The next join here acquires it
        again.
        """
        held = self._held.get(group)
        if held is not None:
            self._held[group] = _Held(0, -1, held.path)

    def _acquire(self, group: str, guard: Callable[[], Check] | None) -> None:
        name = f"broker-{self._incarnation()}"
        acquired = acquire(self._coordination, group, GroupProtocol.CLASSIC, name, guard=guard)
        self._held[group] = _Held(self._coordination.session_id, acquired.version, acquired.path)

    def _join_ended(self, group: str) -> bool:
        """Counts one pending join less; returns whether any are left."""
        with self._counts:
            self._joining[group] -= 1
            if self._joining[group] <= 0:
                del self._joining[group]
            return group in self._joining
