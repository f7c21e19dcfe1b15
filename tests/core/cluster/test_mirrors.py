"""What the coordination holds about mirrors."""

from __future__ import annotations

from pathlib import Path

import pytest

from klamm.core.cluster.mirrors import (
    LinkNode,
    ReportNode,
    copied_path,
    link_path,
    read_links,
    read_reports,
    remove_link,
    report_path,
    update,
)
from klamm.core.config.settings import load_settings
from klamm.core.interfaces.coordination import NoNodeError


def test_nothing_of_a_link_comes_back_after_it_was_dropped(tmp_path: Path) -> None:
    """A broker that has not noticed it yet reports once more."""
    settings = load_settings({"coordination": {"plugin": "embedded", "path": str(tmp_path / "coordination.db")}})
    coordination = settings.make_coordination()
    coordination.start(30)
    try:
        node, report = LinkNode(config={}), ReportNode(problem="a")
        for _ in range(2):
            update(coordination, link_path("berlin"), LinkNode, lambda _: node)
            update(coordination, report_path("berlin", 0), ReportNode, lambda _: report)
            assert read_reports(coordination, "berlin") == {0: report}
            remove_link(coordination, "berlin")
            with pytest.raises(NoNodeError):
                update(coordination, report_path("berlin", 0), ReportNode, lambda _: report)
            assert read_links(coordination) == {}
    finally:
        coordination.close()


def test_every_group_has_a_path_of_its_own() -> None:
    """No coordination takes `.` and `..` as names."""
    groups = ["", ".", "..", "...", "%2E", "%", "a/b", "a.b"]
    names = [copied_path("berlin", group).rpartition("/")[2] for group in groups]
    assert len(set(names)) == len(groups)
    assert not {"", ".", ".."} & set(names)
