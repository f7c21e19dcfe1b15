"""The demo's threads end with it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from klamm.plugins.demo import story
from klamm.plugins.demo.processes import Processes
from klamm.plugins.demo.steps.hdfs import LakeFileSystem
from klamm.plugins.demo.steps.plant import Plant


@pytest.mark.timeout(60)
@pytest.mark.parametrize("work", ["_register", "_load"])
def test_ctrl_c_while_a_thread_starts_ends_it(work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Future[Any]] = []

    class Interrupted(ThreadPoolExecutor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            started.append(super().submit(fn, *args, **kwargs))
            if fn.__name__ == work:
                raise KeyboardInterrupt
            return started[-1]

    monkeypatch.setattr(story, "ThreadPoolExecutor", Interrupted)
    monkeypatch.setattr(story, "Group", MagicMock())
    told = story.Story(MagicMock(), MagicMock(seconds=0.0), Plant.NONE, LakeFileSystem.FILE, 1, story.Size(1, 0))
    parts = story._Parts(Processes(tmp_path), MagicMock(), MagicMock(), MagicMock(), None, MagicMock())
    with pytest.raises(KeyboardInterrupt):
        told._flow(parts)
    assert all(each.done() for each in started)
