"""The driver of load jobs as a process that a campaign leads: `python driver.py`.

It holds one Spark session over many runs. A line of JSON each way:

- to it: `{"do": "load_by", "config": "…", "sink": "…"}`, by which the runs that follow load, without what was planted;
  `{"do": "run", "stop_at": [points], "rules": "…"}` (`rules` as in `KLAMM_FAULTS`), `{"do": "go"}`, `{"do":
  "safe_mode", "user": "…", "on": true}`, `{"do": "plant", "what": "…"}`, `{"do": "clocks"}`; the end of its input ends
  it.
- from it: `{"ready": pid}`, `{"at": point}` at a fault point of `stop_at`, where it does what it is told until `go`,
  `{"clocks": [driver's, JVM's]}` in seconds since the epoch, `{"ok": true}` after the others, and `{"done": …}` with
  the run's report, or with the traceback of what must not be.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from klamm.core import faults
from klamm.core.config.settings import load_settings
from klamm.core.faults import ScriptedFaults
from klamm.hadoop.lake.config import LakeConfig
from klamm.hadoop.load.loader import Loader
from loads import plants


class Driver:
    """`out` leads to the campaign; the output of Spark and its JVM goes to another file."""

    def __init__(self, out: int) -> None:
        self._out = os.fdopen(out, "w")
        self._used = ExitStack()
        self._loader: Loader | None = None
        self._root = ""
        self._stop_at: set[str] = set()
        self._rules = ScriptedFaults("")

    def serve(self) -> None:
        self._say({"ready": os.getpid()})
        with self._used:
            self._obey(until="end")

    def _load_by(self, config: Path, sink: str) -> None:
        self._used.close()
        plants.unplant()
        settings = load_settings(config)
        chosen = settings.sink(sink).choice.config
        assert isinstance(chosen, LakeConfig)
        self._root = chosen.path
        self._loader = self._used.enter_context(Loader(settings, sink, Console(stderr=True)))

    def _say(self, what: dict[str, Any]) -> None:
        self._out.write(json.dumps(what) + "\n")
        self._out.flush()

    def _obey(self, until: str) -> None:
        while line := sys.stdin.readline():
            order = json.loads(line)
            if order["do"] == until:
                return
            if order["do"] == "run":
                self._run(order)
            elif order["do"] == "load_by":
                self._load_by(Path(order["config"]), order["sink"])
                self._say({"ok": True})
            elif order["do"] == "plant":
                plants.plant(order["what"])
                self._say({"ok": True})
            elif order["do"] == "clocks":
                from klammtest.hadoop.hdfs_client import jvm_time_s

                self._say({"clocks": [time.time(), jvm_time_s()]})
            elif order["do"] == "safe_mode":
                from klammtest.hadoop.hdfs_client import Administration  # through the JVM that the load has started

                Administration(self._root, order["user"]).set_safe_mode(on=order["on"])
                self._say({"ok": True})
        if until == "go":  # the campaign has ended
            os._exit(1)

    def _run(self, order: dict[str, Any]) -> None:
        assert self._loader is not None
        self._stop_at = set(order["stop_at"])
        self._rules = ScriptedFaults(order["rules"])
        faults.install(self._at)
        try:
            self._say({"done": json.loads(self._loader.run().to_json())})
        except Exception:
            self._say({"done": {"crash": traceback.format_exc()}})
        finally:
            faults.install(None)

    def _at(self, point: str) -> None:
        self._rules(point)
        if point in self._stop_at:
            self._say({"at": point})
            self._obey(until="go")


def main() -> None:
    out = os.dup(1)
    os.dup2(2, 1)
    Driver(out).serve()


if __name__ == "__main__":
    main()
