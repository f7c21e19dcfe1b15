"""The demo's offline cluster: its file, the count of what it has copied, and the kill of its broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from klamm.core.config.settings import load_settings
from klamm.core.records.encode import encode_batch
from klamm.plugins.demo.outage import MIRROR_MONTH, MirrorOutage
from klamm.plugins.demo.report.timeline import MarkKind
from klamm.plugins.demo.steps.mirror import LINKS, CopiedRecords
from klamm.plugins.demo.steps.plant import hide_last_batch
from klamm.plugins.demo.workspace import Workspace


def test_the_offline_cluster_shares_nothing_with_the_live_one(tmp_path: Path) -> None:
    workspace = Workspace.make(tmp_path)
    live, offline = load_settings(workspace.config), load_settings(workspace.offline)
    [address] = offline.broker.bound()
    assert f"{address.host}:{address.port}" == workspace.offline_bootstrap == offline.consumer.bootstrap_servers
    assert workspace.offline_bootstrap not in workspace.bootstrap.split(",")
    assert sorted(offline.mirrors) == sorted(LINKS)
    assert {",".join(link.bootstrap_servers) for link in offline.mirrors.values()} == {workspace.bootstrap}
    assert (sorted(live.sinks), sorted(offline.sinks)) == ([], ["lake"])
    assert (workspace.root / offline.broker.log_dirs).resolve() == workspace.mirror_log


def test_records_are_counted_once_as_segments_grow(tmp_path: Path) -> None:
    copied = CopiedRecords(tmp_path, "flights")
    assert copied.count() == 0
    first, second = (tmp_path / f"flights-{n}" / "00000000000000000000.log" for n in range(2))
    batches = [encode_batch([(1, b"k", b"v", ())] * 3, base_offset=3 * n) for n in range(2)]
    for segment in (first, second):
        segment.parent.mkdir()
        segment.write_bytes(batches[0])
    assert copied.count() == copied.count() == 6
    first.write_bytes(batches[0] + batches[1][:-1])
    assert copied.count() == 6, "a batch that is not whole yet"
    first.write_bytes(batches[0] + batches[1])
    assert copied.count() == 9
    hide_last_batch(second)
    assert CopiedRecords(tmp_path, "flights").count() == 6, "control batches have no flights"


class _Mirror:
    def __init__(self) -> None:
        self.copied = self.kills = 0

    def flights(self) -> int:
        return self.copied

    def kill(self) -> None:
        self.kills += 1

    def check(self) -> None: ...


def test_the_broker_that_mirrors_is_killed_once_and_copies_on() -> None:
    mirror = _Mirror()
    told: list[tuple[MarkKind, str]] = []
    seconds = iter([1.0, 3.5])
    outage = MirrorOutage(cast("Any", mirror), lambda text, kind: told.append((kind, text)), lambda: next(seconds))
    mirror.copied = 1000
    for months in (MIRROR_MONTH - 1, MIRROR_MONTH, MIRROR_MONTH, MIRROR_MONTH + 1):
        outage.advance(months)
    assert (mirror.kills, outage.over) == (1, False)
    mirror.copied = 1001
    outage.advance(MIRROR_MONTH + 1)
    assert outage.over
    assert told == [
        (MarkKind.KILL, "the broker that mirrors is killed with -9 after 1,000 flights, and started again"),
        (MarkKind.NEWS, "it copies on at the end of its log 2.5 s after the kill"),
    ]
