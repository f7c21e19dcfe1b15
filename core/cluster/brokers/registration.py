"""A broker's registration, the ephemeral path `/brokers/ids/<id>`.

Rules: a path of this session is this broker's. A path whose data names this broker's log directory belongs to its dead
session, since this process holds that directory's lock: the path is replaced at once. For any other path the broker
waits a session time-out and a half, in case its owner is dead; if the path still exists then, a live broker has the
same id.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ...errors import BrokerError, ErrorCode
from ...interfaces.coordination import (
    BadVersionError,
    Coordination,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    Stat,
)
from ..image import Endpoint
from ..tree import paths
from ..tree.nodes import BrokerIdNode

_log = logging.getLogger(__name__)
_ATTEMPTS = 10


class DisplacedError(BrokerError):
    """Another broker has registered with this one's id: clients connect to that one, and would not see what this one
    acknowledges.
    """


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """The id and address of this broker. `directory_id` is from `meta.properties` of its log directory; with an empty
    one the broker replaces no path of a dead session."""

    broker_id: int
    endpoint: Endpoint
    directory_id: str = ""
    rack: str | None = None


class Registration:
    """Registers one broker. `clock` returns seconds since 1970."""

    def __init__(self, coordination: Coordination, identity: BrokerIdentity, clock: Callable[[], float]) -> None:
        self._coordination = coordination
        self._identity = identity
        self._clock = clock
        self._path = paths.broker(identity.broker_id)
        self._sessions: set[int] = set()

    def register(self) -> int:
        """Registers the broker and returns the broker epoch.

        Raises `BrokerError` DUPLICATE_BROKER_REGISTRATION if a live broker has this id, and `DisplacedError` if this
        one was registered before and another has taken the id since.
        """
        data = self._node().encode()
        waited = False
        for _ in range(_ATTEMPTS):
            try:
                return self._mine(self._coordination.create(self._path, data, ephemeral=True))
            except NodeExistsError:
                found = self._found()
            if found is None:
                continue  # deleted in the meantime
            node, stat = found
            if stat.ephemeral_owner == self._coordination.session_id:
                self._coordination.set(self._path, data)
                return self._mine(stat)
            if stat.ephemeral_owner in self._sessions or (not self._sessions and self._same_directory(node)):
                self._replace(data, stat)
            elif self._sessions:
                raise self._displaced(node)
            elif not waited:
                waited = True
                self._wait_for_expiry(node)
            else:
                raise self._taken(node)
        raise BrokerError(
            ErrorCode.duplicate_broker_registration, f"{self._path} kept changing; another broker claims this id too"
        )

    def _mine(self, stat: Stat) -> int:
        self._sessions.add(stat.ephemeral_owner)
        return stat.creation_id

    def _same_directory(self, node: BrokerIdNode) -> bool:
        return self._identity.directory_id != "" and node.directory_id == self._identity.directory_id

    def holds(self, epoch: int) -> bool:
        """Returns whether the path, read now, is this session's registration of that epoch."""
        stat = self._coordination.exists(self._path)
        return stat is not None and self._is_mine(stat, epoch)

    def _is_mine(self, stat: Stat, epoch: int) -> bool:
        return stat.ephemeral_owner == self._coordination.session_id and stat.creation_id == epoch

    def renew(self, epoch: int) -> bool:
        """Returns whether this session still has the registration of that epoch. It writes the path, since only a write
        is certain to be refused to an expired session."""
        found = self._found()
        if found is None or not self._is_mine(found[1], epoch):
            return False
        node, stat = found
        try:
            self._coordination.set(self._path, node.encode(), stat.version)
        except (NoNodeError, BadVersionError):
            return False
        return True

    def unregister(self) -> None:
        """Deletes the path if it is this session's."""
        found = self._found()
        if found is None or found[1].ephemeral_owner != self._coordination.session_id:
            return
        try:
            self._coordination.delete(self._path, found[1].version)
        except (NoNodeError, BadVersionError):
            _log.info("%s was replaced or deleted by another", self._path)

    def _node(self) -> BrokerIdNode:
        host, port, listener = self._identity.endpoint
        return BrokerIdNode(
            host=host,
            port=port,
            endpoints=(f"{listener}://{host}:{port}",),
            listener_security_protocol_map={listener: "PLAINTEXT"},
            rack=self._identity.rack,
            timestamp=int(self._clock() * 1000),
            directory_id=self._identity.directory_id,
        )

    def _found(self) -> tuple[BrokerIdNode, Stat] | None:
        try:
            data, stat = self._coordination.get(self._path)
        except NoNodeError:
            return None
        return BrokerIdNode.decode(self._path, data), stat

    def _replace(self, data: bytes, stat: Stat) -> None:
        _log.info("replacing %s of this broker's dead session %#x", self._path, stat.ephemeral_owner)
        try:
            self._coordination.transaction([Delete(self._path, stat.version), Create(self._path, data, ephemeral=True)])
        except (NoNodeError, BadVersionError):
            _log.info("%s changed in the meantime", self._path)

    def _wait_for_expiry(self, node: BrokerIdNode) -> None:
        """Waits until the path is deleted, at most one session time-out and a half."""
        timeout_s = self._coordination.session_timeout_s * 1.5
        _log.warning(
            "%s is registered by %s:%d; waiting up to %.1f s for its session to expire",
            self._path,
            node.host,
            node.port,
            timeout_s,
        )
        changed = threading.Event()
        watch = self._coordination.watch(self._path, changed.set)
        deadline = time.monotonic() + timeout_s
        try:
            while self._coordination.exists(self._path) is not None:
                if not changed.wait(max(0.0, deadline - time.monotonic())):
                    return
                changed.clear()
        finally:
            watch.cancel()

    def _displaced(self, node: BrokerIdNode) -> DisplacedError:
        own = self._identity.directory_id
        how = "another log directory" if node.directory_id != own else "a copy of this log directory"
        return DisplacedError(
            ErrorCode.duplicate_broker_registration,
            f"broker id {self._identity.broker_id} was taken by the broker at {node.host}:{node.port}, with {how} "
            f"({node.directory_id or 'unnamed'}, this one's is {own or 'unnamed'}), after this one's session expired: "
            "this broker stops; run only one of them",
        )

    def _taken(self, node: BrokerIdNode) -> BrokerError:
        return BrokerError(
            ErrorCode.duplicate_broker_registration,
            f"broker id {self._identity.broker_id} is taken by the live broker at {node.host}:{node.port}; "
            "configure another `broker.id` for this one",
        )
