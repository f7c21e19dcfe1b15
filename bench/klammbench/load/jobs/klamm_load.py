"""Runs the command `klamm load` itself and marks the times at which a load passes from one step to the next.

python -m klammbench.load.jobs.klamm_load MARKS load --config klamm.yaml SINK
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from klammbench.load.jobs.marks import Marks


def main() -> None:
    marks = Marks(Path(sys.argv[1]))
    marks.mark("python")
    from klamm.core import faults
    from klamm.core.cli.main import main as klamm
    from klamm.hadoop.columnar.job import ColumnarJob
    from klamm.hadoop.load import job
    from klamm.hadoop.load import loader as run

    marks.mark("imports")
    faults.install(lambda name: marks.mark(name.removeprefix("load.")))
    for owner, name, mark in (
        (run, "hadoop_jvm", "jvm"),
        (run, "start_session", "session"),
        (ColumnarJob, "_read", "read"),
        (ColumnarJob, "_write", "rows"),
        (job, "write", "rows"),
        (job, "count", "counted"),
    ):
        setattr(owner, name, _marked(getattr(owner, name), marks, mark))
    sys.argv = ["klamm", *sys.argv[2:]]
    try:
        klamm()
    finally:
        marks.mark("done")


def _marked(function: Callable[..., Any], marks: Marks, name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        marks.mark(name)
        return result

    return call


if __name__ == "__main__":
    main()
