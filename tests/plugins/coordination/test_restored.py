"""A client of a real ZooKeeper or etcd whose server gets an older copy of its data."""

from __future__ import annotations

from pathlib import Path

import pytest

from klamm.core.config.settings import load_settings
from klamm.core.errors import CoordinationError
from klamm.core.interfaces.coordination import Coordination, SessionEvent
from klamm.testing.contracts import SessionEvents
from klammtest.etcd import needs_etcd
from klammtest.replicated.restores import server_backup
from klammtest.waiting import eventually


def value(client: Coordination) -> bytes:
    try:
        return client.get("/a")[0]
    except CoordinationError:
        return b""


@pytest.mark.parametrize("kind", ["zookeeper", pytest.param("etcd", marks=needs_etcd)])
def test_a_client_reads_what_the_copy_has(tmp_path: Path, kind: str) -> None:
    """One has the session that it has in the copy; that of the other is over. ZooKeeper refuses a client that has seen
    more than it, and would for ever."""
    with server_backup(kind, tmp_path, session_ms=2_000) as backup:
        settings = load_settings({"coordination": dict(backup.section)})
        known, new = settings.make_coordination(), settings.make_coordination()
        known.start(timeout_s=60.0)
        known.create("/a", b"older")
        backup.make()
        eventually(lambda: value(known) == b"older", "the server is back")
        session = known.session_id
        new.start(timeout_s=60.0)
        events = SessionEvents(new)
        new.set("/a", b"newer")
        assert value(known) == b"newer"
        backup.put_back()
        events.wait_for(SessionEvent.EXPIRED)
        eventually(lambda: known.session_id != session or value(known) == b"older", "the client reads the copy")
        if known.session_id != session:  # its session has ended in the meantime, on a busy machine
            known.restart(timeout_s=60.0)
        assert value(known) == b"older"
        new.restart(timeout_s=60.0)
        assert value(new) == b"older"
        known.close()
        new.close()
