"""Feeds the bytes of a coverage-guided fuzzer to every decoder: frames, headers, messages, batches, codecs."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from harness import Result, Run
from klamm.core.protocol import messages
from klamm.core.records.codecs import CodecTable
from klammtest.requests import batch
from peers.forge import forge, requests

FAULTS = Path(__file__).parents[2]
TARGET = FAULTS / "peers" / "decoder_target.py"
FULL, QUICK = 10_000_000, 20_000
MOST_MEMORY_MB = 1_024
LONGEST_INPUT = 1_024
LIMIT_S = 2_200.0
_DONE = re.compile(r"^#(\d+)\s+DONE", re.MULTILINE)
_RUNS = re.compile(r"stat::number_of_executed_units:\s+(\d+)")
_PEAK = re.compile(r"stat::peak_rss_mb:\s+(\d+)")


class FuzzDecoder:
    name = "fuzz-decoder"
    injects = "inputs by atheris (libFuzzer), from well-formed requests, responses and batches of every codec on"
    asserts = (
        "a decoder's own error (protocol, corrupt record, unknown codec) or none; none takes 10 s; memory below 1 GB"
    )
    plants = "an input of more than 40 bytes is an AssertionError"
    tools = ()

    def run(self, run: Run) -> Result:
        wanted = QUICK if run.quick else FULL
        result = Result(wanted=wanted)
        seeds = run.folder / "seeds"
        seeds.mkdir()
        for n, data in enumerate(_seeds(run.chance("seeds"))):
            (seeds / str(n)).write_bytes(data)
        said, status = _fuzz(run, seeds, wanted)
        runs = _RUNS.search(said) or _DONE.search(said)
        result.injected = int(runs[1]) if runs else 0
        peak = _PEAK.search(said)
        result.figures["peak-rss-mb"] = int(peak[1]) if peak else -1
        if status != 0:
            result.wrong("all", _why(said))
            for kept in sorted(run.folder.glob("found-*")):
                result.wrong("all", f"the input: {kept.read_bytes().hex()}")
        return result


def _why(said: str) -> str:
    """Returns the Python exception or the sanitizer's verdict, else the end of the output."""
    lines = said.strip().splitlines()
    first = next((n for n, line in enumerate(lines) if "Uncaught Python exception" in line or "ERROR: " in line), -12)
    return " | ".join(lines[first:])[:1_500]


def _fuzz(run: Run, seeds: Path, runs: int) -> tuple[str, int]:
    command = [
        sys.executable, str(TARGET), str(seeds), f"-runs={runs}", f"-seed={run.seed % 2**31 or 1}", "-timeout=10",
        f"-rss_limit_mb={MOST_MEMORY_MB}", f"-max_len={LONGEST_INPUT}", f"-artifact_prefix={run.folder}/found-",
        "-print_final_stats=1", "-verbosity=1",
    ]  # fmt: skip
    command += ["--plant"] * run.plant
    path = os.pathsep.join((str(FAULTS), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment)
    return done.stdout + done.stderr, done.returncode


def _seeds(chance: random.Random) -> list[bytes]:
    served = list(requests())
    seeds = []
    for n, (api, version) in enumerate(served):
        seeds.append(bytes((1, n)) + bytes(forge(messages.request(api, version).root, chance).data))
        seeds.append(bytes((3, n)) + bytes(forge(messages.response(api, version).root, chance).data))
    return seeds + [b"\x04" + data for data in _batches()]


def _batches() -> Sequence[bytes]:
    from peers.decoder_target import CODECS

    table: CodecTable = CODECS
    values = [b"x" * n for n in (0, 1, 200)]
    return [batch(*values), *(batch(*values, codec=table.by_id(n)) for n in range(1, 5))]


CAMPAIGNS = [FuzzDecoder()]
