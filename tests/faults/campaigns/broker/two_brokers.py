"""A second broker is started on the log directory of a running one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml

from harness import Result, Run
from klammtest.broker import ENVIRONMENT, KLAMM, RunningBroker, running_broker
from klammtest.ports import free_port
from produced import append_values, values_in

TOPIC = "shared"


class TwoBrokers:
    name = "two-brokers"
    injects = "a second broker process on the log directory of a running one, which is written to meanwhile"
    asserts = (
        "the second is refused with one line that names the directory, exit 1; the first continues; after kill -9"
        " of it a new one may start and has everything that was acknowledged"
    )
    plants = "the lock file is removed, so that the second broker takes another lock and is not stopped by it"
    tools = ()

    def run(self, run: Run) -> Result:
        total = Result(wanted=2 if run.quick else 20)
        topics = {TOPIC: {"partitions": 1}}
        with running_broker(run.folder / "first", topics=topics) as first:
            for i, _ in run.injections(2, 20):
                total.acknowledged += append_values(first.bootstrap, TOPIC, range(i * 100, i * 100 + 50), total, i)
                if run.plant:
                    (first.log_dir / ".lock").unlink(missing_ok=True)
                self._second(i, first, run.folder / f"second-{i}", total)
                total.acknowledged += append_values(
                    first.bootstrap, TOPIC, range(i * 100 + 50, i * 100 + 100), total, i
                )
            first.kill()
            first.restart()
            stored = values_in(first.bootstrap, TOPIC)
            if len(stored) != total.acknowledged:
                total.lose("end", f"{total.acknowledged} acknowledged, {len(stored)} stored", 1)
        return total

    def _second(self, i: int, first: RunningBroker, folder: Path, total: Result) -> None:
        folder.mkdir()
        config = yaml.safe_load(first.config_path.read_text())
        config["broker"] |= {"log.dirs": str(first.log_dir), "listeners": f"PLAINTEXT://127.0.0.1:{free_port()}"}
        config.pop("topics", None)
        path = folder / "klamm.yaml"
        path.write_text(yaml.safe_dump(config))
        process = subprocess.Popen(
            [KLAMM, "broker", "--config", str(path)], cwd=folder, env=ENVIRONMENT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        total.injected += 1
        try:
            said, _ = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
            total.wrong(i, f"the second broker was not refused: {said[-300:]}")
            return
        refusal = [line for line in said.splitlines() if "is in use by another broker" in line]
        if process.returncode != 1 or len(refusal) != 1 or "Traceback" in said:
            total.wrong(i, f"the second broker ended with {process.returncode}: {said[-300:]}")


CAMPAIGNS = [TwoBrokers()]
