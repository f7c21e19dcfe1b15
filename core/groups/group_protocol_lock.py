"""The two doors to a consumer group, and the rule that a group is entered by one of them at a time (design D6).

`/consumers/<group>` names the door in its data; `/consumers/<group>/ids` holds an ephemeral path for each one inside:
the registry's members, or the broker that coordinates classic ones. Whoever enters writes the door and its own path
in one transaction that holds only if the door's version is the one it read. So of two that come at once by different
doors, one finds a newer version, reads again, and sees the other inside.
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

from ..cluster import paths
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

_ENTER_ATTEMPTS = 20
"""Each lost race means that somebody else got in; so many in a row mean that something is wrong."""


class Door(Enum):
    REGISTRY = "registry"
    CLASSIC = "classic"


class _DoorNode(BaseModel):
    """The data of `/consumers/<group>`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    version: int = 1
    door: Literal["registry", "classic"]


class Entry(NamedTuple):
    """`path`: of who is inside. `version`: of the group's root since then; each later entry, of whomever, raises it."""

    path: str
    version: int


def enter(
    coordination: Coordination, group: str, door: Door, name: str, data: bytes = b"", *, expected: int | None = None
) -> Entry:
    """Create the ephemeral path `ids/<name>`, by this door.

    `BrokerError` INCONSISTENT_GROUP_PROTOCOL while the group is entered by the other door, `NodeExistsError` when the
    name is taken by a live session (of this one's: it is entered already, and that is fine). `expected`: only as long
    as nobody has entered since that version of the root; else `BrokerError` NOT_COORDINATOR.
    """
    path = paths.group_member(group, name)
    retry = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(BadVersionError),
        stop=tenacity.stop_after_attempt(_ENTER_ATTEMPTS),
        wait=tenacity.wait_random(0, 0.05),
        reraise=True,
    )
    return Entry(path, retry(_enter_once, coordination, group, door, Create(path, data, ephemeral=True), expected))


def _enter_once(coordination: Coordination, group: str, door: Door, create: Create, expected: int | None) -> int:
    """The version of the root after it."""
    root = paths.group(group)
    _make(coordination, paths.group_ids(group))
    raw, stat = coordination.get(root)
    if expected not in (None, stat.version):
        raise BrokerError(ErrorCode.not_coordinator, f"group {group!r} has been entered by another broker")
    inside = coordination.children(paths.group_ids(group))
    current = _door_of(root, raw)
    if current not in (None, door) and inside:
        raise BrokerError(
            ErrorCode.inconsistent_group_protocol,
            f"group {group!r} has members of the {current.value if current else ''} kind; {door.value} ones must wait "
            "until they have left, or use another group id",
        )
    enter_door: list[Operation] = [Set(root, _DoorNode(door=door.value).model_dump_json().encode(), stat.version)]
    name = create.path.rpartition("/")[2]
    if name in inside:
        found = coordination.exists(create.path)
        own = found is not None and found.ephemeral_owner == coordination.session_id
        if own and door is Door.REGISTRY:
            return stat.version
        if found is not None and door is Door.REGISTRY:
            raise NodeExistsError(f"{create.path} is there: a member of another session has this name")
        if found is not None:
            # A broker's id is its own: this path is left over from its session before, or from an entry before another
            # broker's.
            enter_door.append(Delete(create.path))
    try:
        coordination.transaction([*enter_door, create])
    except (NoNodeError, NodeExistsError) as error:
        # The path of the broker's former session went, or its own came, between reading and writing: read again.
        raise BadVersionError(str(error)) from error
    return stat.version + 1


def door_of(coordination: Coordination, group: str) -> Door | None:
    """The door by which the group is entered now; None while nobody is inside."""
    return look_inside(coordination, group)[0]


def look_inside(coordination: Coordination, group: str) -> tuple[Door | None, list[Check]]:
    """`door_of`, and what holds until somebody enters; nothing where nobody ever has."""
    root = paths.group(group)
    try:
        raw, stat = coordination.get(root)
    except NoNodeError:
        return None, []
    unchanged = [Check(root, stat.version)]
    try:
        inside = coordination.children(paths.group_ids(group))
    except NoNodeError:
        return None, unchanged
    return _door_of(root, raw) if inside else None, unchanged


def hold_still(coordination: Coordination, group: str) -> tuple[Door | None, list[Check]]:
    """`look_inside`, for a group that nobody has ever entered too: its path is made, until `let_go`."""
    _make(coordination, paths.group(group))
    return look_inside(coordination, group)


def let_go(coordination: Coordination, group: str) -> None:
    """Remove the path of a group that nobody has ever entered; it holds nothing, so it may stay as well."""
    with suppress(CoordinationError):  # not empty, as a rule: whoever has entered once leaves `ids`
        coordination.delete(paths.group(group))


def _door_of(path: str, raw: bytes) -> Door | None:
    """None for a group that only has offsets."""
    if not raw:
        return None
    try:
        return Door(_DoorNode.model_validate_json(raw).door)
    except ValidationError as error:
        raise CoordinationError(f"{path} should name the group's door, but holds {raw[:80]!r}") from error


def _make(coordination: Coordination, path: str) -> None:
    if coordination.exists(path) is None:
        try:
            coordination.create(path, make_parents=True)
        except NodeExistsError:
            return


class _Open(NamedTuple):
    """A door that this broker has entered in that session; 0: it is not entered any more."""

    session: int
    version: int


class ClassicDoors:
    """The doors that one broker holds open for its classic groups: entered before the first member joins, left after
    the last has gone.

    The broker's handler of JoinGroup calls `enter` on a worker thread, then on its loop `coordinator.join`, then
    `entered`; where that returns True, or the coordinator reports the group empty, it calls `leave` on a worker
    thread. `populated` is `GroupCoordinator.populated`.

    Each entry raises the version of the group's root, so the version of one's own entry is a fencing token: as long as
    it stands, no other broker has had a member of the group since (`guard`).
    """

    def __init__(self, coordination: Coordination, broker_id: int, populated: Callable[[str], bool]) -> None:
        self._coordination = coordination
        self._name = f"broker-{broker_id}"
        self._populated = populated
        self._io = threading.Lock()
        self._counts = threading.Lock()
        self._joining: Counter[str] = Counter()
        self._open: dict[str, _Open] = {}

    def enter(self, group: str) -> None:
        """Blocking. `BrokerError` INCONSISTENT_GROUP_PROTOCOL while registry members are inside; other errors of the
        coordination. Call `entered` only when this has returned."""
        with self._counts:
            self._joining[group] += 1
        try:
            session = self._coordination.session_id
            held = self._open.get(group)
            if held is not None and held.session == session and session:
                return
            with self._io:
                self._enter(group)
        except BaseException:
            self._done(group)
            raise

    def entered(self, group: str) -> bool:
        """The join has been given to the coordinator. True: it left nobody in the group, so call `leave`."""
        return not self._done(group) and not self._populated(group)

    def leave(self, group: str) -> None:
        """Blocking. Close the door, unless somebody has come in the meantime."""
        with self._io:
            with self._counts:
                if self._joining[group] > 0 or self._populated(group) or group not in self._open:
                    return
                self._open[group] = _Open(0, -1)  # who joins from here on enters again, after this
            with suppress(NoNodeError):
                self._coordination.delete(paths.group_member(group, self._name))
            del self._open[group]  # only now: a call that failed is to be made again

    def guard(self, group: str) -> Check | None:
        """What holds until another broker, or a registry member, enters the group; None while its door is not open."""
        held = self._open.get(group)
        return Check(paths.group(group), held.version) if held is not None and held.session else None

    def still_holds(self, group: str) -> bool:
        """Blocking. Whether the guard holds now."""
        with self._io:
            held = self._open.get(group)
            return held is None or self._coordination.get(paths.group(group))[1].version == held.version

    def lost(self, group: str) -> None:
        """The guard has failed: somebody else has entered. The next member that joins here enters again."""
        if group in self._open:
            self._open[group] = _Open(0, -1)

    def renew(self) -> list[str]:
        """Blocking. After the session expired and a new one is up: enter again the doors of groups that have members;
        returns the groups that somebody else has entered in the meantime, whose members must go."""
        lost = []
        with self._io:
            for group, held in list(self._open.items()):
                if not self._populated(group):
                    del self._open[group]
                    continue
                try:
                    self._enter(group, held.version)
                except BrokerError:
                    self.lost(group)
                    lost.append(group)
        return lost

    def _enter(self, group: str, expected: int | None = None) -> None:
        entry = enter(self._coordination, group, Door.CLASSIC, self._name, expected=expected)
        self._open[group] = _Open(self._coordination.session_id, entry.version)

    def _done(self, group: str) -> bool:
        """One join less under way; whether there are more."""
        with self._counts:
            self._joining[group] -= 1
            if self._joining[group] <= 0:
                del self._joining[group]
            return group in self._joining
