"""A broker's registration: the ephemeral paths `/brokers/ids/<id>` and `/brokers/incarnations/<uuid>`, created and
deleted together.

Rules: a path of this session is this broker's. A path whose data names this broker's log directory belongs to its dead
session, since this process holds that directory's lock: the path is replaced at once. For any other path the broker
waits one and a half session time-outs, in case its owner is dead; if the path still exists then, a live broker has the
same id. Every new registration has a new incarnation; one that the controller evicted is replaced by a new one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID, uuid4

from ...errors import BrokerError, ErrorCode
from ...interfaces.coordination import (
    BadVersionError,
    Check,
    Delete,
    NodeExistsError,
    NoNodeError,
    Operation,
    SessionExpiredError,
    Set,
    Stat,
)
from ...transport.address import Address
from ..changes import incarnation_path
from ..image import Endpoint
from ..tree import paths
from ..tree.nodes import BrokerIdNode
from ..tree.steps import Session, Steps, await_change, exists, find, transact
from .incarnations import register_operations, state_of

_log = logging.getLogger(__name__)
_ATTEMPTS = 10


class DisplacedError(BrokerError):
    """Another broker has registered with this one's id: clients connect to that one, and would not see what this one
    acknowledges."""


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """The id, data and addresses of this broker. The first of `endpoints` is for clients that name no listener.
    `data_ids`: of its log directory, newest first. `directory_id` is from the log directory's `meta.properties`; if it
    is empty the broker replaces no path of a dead session."""

    broker_id: int
    endpoints: tuple[Endpoint, ...]
    data_ids: tuple[str, ...]
    directory_id: str = ""
    rack: str | None = None
    inter_broker_listener: str = ""


@dataclass(frozen=True, slots=True)
class OwnRegistration:
    """What identifies a registration that this broker made."""

    epoch: int
    incarnation: str
    session_id: int


class Registration:
    """Registers one broker; without I/O. `clock` returns seconds since 1970, `new_id` a new incarnation."""

    def __init__(
        self,
        session: Session,
        identity: BrokerIdentity,
        clock: Callable[[], float],
        new_id: Callable[[], UUID] = uuid4,
    ) -> None:
        if not identity.data_ids or not identity.endpoints:
            raise ValueError("a broker has at least one data id and one endpoint")
        self._session = session
        self._identity = identity
        self._clock = clock
        self._new_id = new_id
        self._path = paths.broker(identity.broker_id)
        self._sessions: set[int] = set()
        self._own: OwnRegistration | None = None
        self._leaving = False
        self._full = False

    @property
    def own(self) -> OwnRegistration | None:
        """The last registration that this broker knows to have made; None once its session is over."""
        own = self._own
        return own if own is not None and own.session_id == self._session.session_id else None

    def register(self) -> Steps[int]:
        """Registers the broker and returns the broker epoch.

        Raises `BrokerError` DUPLICATE_BROKER_REGISTRATION if a live broker has this id, and `DisplacedError` if this
        one was registered before and another has taken the id since.
        """
        waited = False
        for _ in range(_ATTEMPTS):
            found = yield from self._found()
            if found is None:
                yield from self._make(())
                continue  # to read what was made
            node, stat = found
            if stat.ephemeral_owner == self._session.session_id and (yield from self._has_incarnation(node, stat)):
                if self._is_current(node):
                    return self._mine(node, stat)
                # Replaced, not changed: others may have read it, and no watch of theirs shows a change of its data.
                yield from self._make((yield from self._deletes(node, stat)))
            elif stat.ephemeral_owner in (*self._sessions, self._session.session_id) or (
                not self._sessions and self._same_directory(node)
            ):
                yield from self._replace(node, stat)
            elif self._sessions:
                raise self._displaced(node)
            elif not waited:
                waited = True
                yield from self._wait_for_expiry(node)
            else:
                raise self._taken(node)
        raise BrokerError(
            ErrorCode.duplicate_broker_registration, f"{self._path} kept changing; another broker claims this id too"
        )

    def _has_incarnation(self, node: BrokerIdNode, stat: Stat) -> Steps[bool]:
        """Returns True if the registration's incarnation path exists and belongs to the same session."""
        if not node.incarnation:
            return False
        found = yield from find(incarnation_path(node.incarnation))
        return found is not None and found[1].ephemeral_owner == stat.ephemeral_owner

    def _is_current(self, node: BrokerIdNode) -> bool:
        """Returns whether the existing registration has this broker's present data."""
        return self._node(node.incarnation).model_copy(update={"timestamp": node.timestamp}) == node

    def _write(self, node: BrokerIdNode, wanted: BrokerIdNode, stat: Stat) -> Steps[bool]:
        """Changes the registration `node`; returns False if it was replaced or changed in the meantime."""
        try:
            yield from transact(*self._changes(node, wanted, stat))
        except (NoNodeError, BadVersionError):
            return False
        return True

    def _changes(self, node: BrokerIdNode, wanted: BrokerIdNode, stat: Stat) -> list[Operation]:
        """Returns the operations that change the registration `node`, and no later one.

        The version of the path restarts with each registration, so the incarnation is checked too: a late change would
        otherwise give a later registration the data of an earlier one.
        """
        change = Set(self._path, wanted.encode(), stat.version)
        return [Check(incarnation_path(node.incarnation)), change] if node.incarnation else [change]

    def _make(self, before: tuple[Operation, ...]) -> Steps[None]:
        """Tries once to create a registration; the caller reads the result."""
        incarnation = str(self._new_id())
        creates = register_operations(self._identity.broker_id, incarnation, self._node(incarnation).encode(), None)
        try:
            yield from transact(*before, *creates)
        except (NodeExistsError, NoNodeError, BadVersionError):
            _log.info("%s changed in the meantime", self._path)

    def _mine(self, node: BrokerIdNode, stat: Stat) -> int:
        self._sessions.add(stat.ephemeral_owner)
        self._own = OwnRegistration(stat.creation_id, node.incarnation, stat.ephemeral_owner)
        return stat.creation_id

    def _same_directory(self, node: BrokerIdNode) -> bool:
        return self._identity.directory_id != "" and node.directory_id == self._identity.directory_id

    def holds(self, epoch: int) -> Steps[bool]:
        """Returns whether the path, read now, is this session's registration of that epoch."""
        found = yield from find(self._path)
        return found is not None and self._is_mine(found[1], epoch)

    def _is_mine(self, stat: Stat, epoch: int) -> bool:
        return stat.ephemeral_owner == self._session.session_id and stat.creation_id == epoch

    def renew(self, epoch: int) -> Steps[bool]:
        """Returns whether this session still has the registration of that epoch. It writes the path, since only a write
        is certain to be refused to an expired session."""
        found = yield from self._found()
        if found is None or not self._is_mine(found[1], epoch):
            return False
        node, stat = found
        return (yield from self._write(node, node, stat))

    def leave(self) -> Steps[list[Operation]]:
        """Returns the operations that mark this registration as leaving; empty if it is marked already or there is
        none. Registrations made later are marked, too."""
        self._leaving = True
        return (yield from self._change_state())

    def mark_full(self, full: bool) -> Steps[list[Operation]]:
        """Returns the operations that mark the disk as full, or as no longer full. Raises `SessionExpiredError` while
        there is no registration: a registration that is being made may have the earlier state."""
        self._full = full
        if (yield from self._own_node()) is None:
            raise SessionExpiredError("this broker is not registered, so the state of its disk cannot be reported")
        return (yield from self._change_state())

    def _own_node(self) -> Steps[tuple[BrokerIdNode, Stat] | None]:
        """Returns the registration `own` as it is stored; None if it no longer exists."""
        found = yield from self._found()
        own = self.own
        return None if found is None or own is None or not self._is_mine(found[1], own.epoch) else found

    def _change_state(self) -> Steps[list[Operation]]:
        found = yield from self._own_node()
        if found is None:
            return []
        node, stat = found
        wanted = node.model_copy(update={"state": self._state})
        return [] if wanted == node else self._changes(node, wanted, stat)

    @property
    def _state(self) -> str:
        return state_of(leaving=self._leaving, full=self._full)

    def begin_anew(self) -> Steps[None]:
        """Deletes this session's registration and forgets all sessions. Called when the coordination was restored from
        a backup, which may hold a registration of any of this broker's processes."""
        yield from self.unregister()
        self._own = None
        self._sessions.clear()

    def unregister(self) -> Steps[None]:
        """Deletes the registration if it is this session's."""
        found = yield from self._found()
        if found is None or found[1].ephemeral_owner != self._session.session_id:
            return
        try:
            yield from transact(*(yield from self._deletes(*found)))
        except (NoNodeError, BadVersionError):
            _log.info("%s was replaced or deleted by another", self._path)

    def _deletes(self, node: BrokerIdNode, stat: Stat) -> Steps[tuple[Operation, ...]]:
        """Returns the operations that delete a registration, and its incarnation if that exists."""
        delete = Delete(self._path, stat.version)
        if not (yield from exists(incarnation_path(node.incarnation))):
            return (delete,)
        return Delete(incarnation_path(node.incarnation)), delete

    def _node(self, incarnation: str) -> BrokerIdNode:
        identity = self._identity
        first = identity.endpoints[0]
        return BrokerIdNode(
            host=first.host,
            port=first.port,
            endpoints=tuple(f"{e.listener}://{Address(e.host, e.port)}" for e in identity.endpoints),
            listener_security_protocol_map={e.listener: e.security_protocol for e in identity.endpoints},
            rack=identity.rack,
            timestamp=int(self._clock() * 1000),
            directory_id=identity.directory_id,
            incarnation=incarnation,
            data=identity.data_ids,
            state=self._state,
            inter_broker_listener=identity.inter_broker_listener or first.listener,
        )

    def _found(self) -> Steps[tuple[BrokerIdNode, Stat] | None]:
        found = yield from find(self._path)
        return None if found is None else (BrokerIdNode.decode(self._path, found[0]), found[1])

    def _replace(self, node: BrokerIdNode, stat: Stat) -> Steps[None]:
        _log.info("replacing %s of this broker's dead session %#x", self._path, stat.ephemeral_owner)
        yield from self._make((yield from self._deletes(node, stat)))

    def _wait_for_expiry(self, node: BrokerIdNode) -> Steps[None]:
        """Waits until the path is deleted, at most one and a half session time-outs."""
        timeout_s = self._session.session_timeout_s * 1.5
        _log.warning(
            "%s is registered by %s; waiting up to %.1f s for its session to expire",
            self._path,
            Address(node.host, node.port),
            timeout_s,
        )
        yield from await_change(self._path, timeout_s)

    def _displaced(self, node: BrokerIdNode) -> DisplacedError:
        own = self._identity.directory_id
        how = "another log directory" if node.directory_id != own else "a copy of this log directory"
        return DisplacedError(
            ErrorCode.duplicate_broker_registration,
            f"broker id {self._identity.broker_id} was taken by the broker at {Address(node.host, node.port)}, "
            f"with {how} ({node.directory_id or 'unnamed'}, this one's is {own or 'unnamed'}), after this one's "
            "session expired: this broker stops; run only one of them",
        )

    def _taken(self, node: BrokerIdNode) -> BrokerError:
        return BrokerError(
            ErrorCode.duplicate_broker_registration,
            f"broker id {self._identity.broker_id} is taken by the live broker at {Address(node.host, node.port)}; "
            "configure another `broker.id` for this one",
        )
