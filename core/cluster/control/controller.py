"""The controller: the broker, elected by the ephemeral path `/controller`, that makes all changes of metadata.

Rules: one transaction creates `/controller` and increases `/controller_epoch`. Every write checks the version that
`/controller_epoch` has after it, so that a deposed controller can write nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...errors import BrokerError, CoordinationError, ErrorCode
from ...interfaces.coordination import (
    BadVersionError,
    CoordinationUnavailableError,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    Operation,
    Set,
    Stat,
)
from ..changes import controller_guard
from ..tree import paths
from ..tree.nodes import ControllerNode
from ..tree.steps import Mutex, Session, Steps, find, get, holding, transact

_log = logging.getLogger(__name__)
_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class ControllerLease:
    """This broker's term as controller, in one session. `epoch` is written to partition states; writes check `version`,
    the version of `/controller_epoch`."""

    epoch: int
    version: int
    session_id: int


class Controller:
    """One broker's part in the election, and its writes while it is the controller; without I/O. Its steps may be
    carried out by several threads."""

    def __init__(
        self,
        session: Session,
        broker_id: int,
        clock: Callable[[], float],
        mutex: Mutex,
        on_not_controller: Callable[[], None] = lambda: None,
    ) -> None:
        """`mutex` excludes concurrent elections. `on_not_controller` is called whenever a controller's write is asked
        of this broker and it has no lease, or has lost it: the owner should `elect` if `/controller` names this broker.
        """
        self._session = session
        self._broker_id = broker_id
        self._clock = clock
        self._on_not_controller = on_not_controller
        self._mutex = mutex
        self._lease: ControllerLease | None = None
        self._refused: ControllerLease | None = None
        """The last lease that has ended, as a refused write under it has shown; not one that was acquired since."""

    @property
    def lease(self) -> ControllerLease | None:
        """The lease as far as this broker knows; only a write proves that it is still valid."""
        lease = self._lease
        ended = lease is None or lease is self._refused or lease.session_id != self._session.session_id
        return None if ended else lease

    def elect(self) -> Steps[bool]:
        """Becomes the controller if there is none; returns whether this broker is the controller.

        Call it when `/controller` changes, and only while this broker is registered: a `/controller` path of its own
        dead session is replaced at once.
        """
        return holding(self._mutex, self._elect())

    def _elect(self) -> Steps[bool]:
        for _ in range(_ATTEMPTS):
            found = yield from self._found()
            if found is not None and found[1].ephemeral_owner == self._session.session_id:
                if self.lease is not None:
                    return True
                # Created by a transaction whose response was lost. The lease is read before the path once more: the
                # version of a successor's lease must not be taken for that of this one.
                lease = yield from self._read_lease()
                still = yield from self._found()
                if still is not None and still[1].creation_id == found[1].creation_id:
                    self._lease = lease
                    return True
                continue
            self._lease = None
            if found is not None and found[0].brokerid != self._broker_id:
                return False
            yield from self._take(found[1] if found else None)
        raise CoordinationUnavailableError(f"{paths.CONTROLLER} kept changing during {_ATTEMPTS} elections")

    def guard(self, refused: bool = False) -> Steps[Sequence[Operation]]:
        """Returns the checks that hold while this broker is the controller. Raises `BrokerError` NOT_CONTROLLER if it
        is not; after a `refused` write, reads from the coordination whether it is."""
        lease = self.lease
        if lease is None:
            raise self._not_controller()
        if refused and (yield from self._read_lease()).version != lease.version:
            self._refused = lease
            raise self._not_controller()
        return controller_guard(lease.version)

    def take_over(self, suspect_id: int) -> Steps[bool]:
        """Becomes the controller in place of a broker that refuses connections; returns whether this broker is the
        controller. Safe at any time: every write of the other one is then refused."""
        return holding(self._mutex, self._take_over(suspect_id))

    def _take_over(self, suspect_id: int) -> Steps[bool]:
        found = yield from self._found()
        if found is not None and found[0].brokerid == suspect_id != self._broker_id:
            self._lease = None  # one of before the suspect's: `elect` would keep it if this is not answered
            yield from self._take(found[1])
        return (yield from self._elect())

    def resign(self) -> Steps[None]:
        """Deletes `/controller` if it is this session's."""
        return holding(self._mutex, self._resign())

    def _resign(self) -> Steps[None]:
        self._lease = None
        found = yield from self._found()
        if found is None or found[1].ephemeral_owner != self._session.session_id:
            return
        try:
            yield from transact(Delete(paths.CONTROLLER, found[1].version))
        except NoNodeError:
            _log.info("%s was already deleted", paths.CONTROLLER)

    def epoch(self) -> int:
        """Returns the controller epoch. Raises `BrokerError` NOT_CONTROLLER if this broker is not the controller."""
        lease = self.lease
        if lease is None:
            raise self._not_controller()
        return lease.epoch

    def _found(self) -> Steps[tuple[ControllerNode, Stat] | None]:
        found = yield from find(paths.CONTROLLER)
        return None if found is None else (ControllerNode.decode(paths.CONTROLLER, found[0]), found[1])

    def _read_lease(self) -> Steps[ControllerLease]:
        data, stat = yield from get(paths.CONTROLLER_EPOCH)
        return ControllerLease(_epoch(data), stat.version, self._session.session_id)

    def _take(self, dead: Stat | None) -> Steps[None]:
        """Tries once to become the controller, replacing the path of this broker's dead session if there is one. The
        caller reads the result."""
        node = ControllerNode(brokerid=self._broker_id, timestamp=int(self._clock() * 1000))
        data, stat = yield from get(paths.CONTROLLER_EPOCH)
        epoch = _epoch(data) + 1
        session_id = self._session.session_id
        operations: list[Operation] = [Delete(paths.CONTROLLER, dead.version)] if dead else []
        operations += [
            Create(paths.CONTROLLER, node.encode(), ephemeral=True),
            Set(paths.CONTROLLER_EPOCH, str(epoch).encode(), stat.version),
        ]
        try:
            yield from transact(*operations)
        except (NodeExistsError, NoNodeError, BadVersionError):
            return  # another broker was elected
        self._lease = ControllerLease(epoch, stat.version + 1, session_id)
        _log.info("broker %d is the controller, epoch %d", self._broker_id, epoch)

    def _not_controller(self) -> BrokerError:
        self._on_not_controller()
        return BrokerError(ErrorCode.not_controller, f"broker {self._broker_id} is not the controller")


def _epoch(data: bytes) -> int:
    try:
        return int(data)
    except ValueError as error:
        raise CoordinationError(f"{paths.CONTROLLER_EPOCH} should hold a number, but holds {data[:40]!r}") from error
