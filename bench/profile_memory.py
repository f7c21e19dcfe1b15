"""Breaks down the memory of (f): PSS of the broker and of ZooKeeper's JVM by kind of mapping, after a load.

    python bench/profile_memory.py [--records 200000] [--embedded] [--lines 8]

Runs what `make bench ONLY=f` runs, once, and reads /proc/PID/smaps. MB are 10^6 bytes, as in the benchmark.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from klammbench.shapes import footprint
from klammbench.systems.klamm import Klamm

_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+\s*(.*)$")


def mappings(pid: int) -> Counter[str]:
    """Returns the PSS in bytes by file name; `anonymous` and `[heap]` are the process's own memory."""
    found: Counter[str] = Counter()
    name = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if match := _MAPPING.match(line):
            name = Path(match[1]).name or "anonymous"
        elif line.startswith("Pss:"):
            found[name] += int(line.split()[1]) * 1024
    return found


def show(pid: int, lines: int) -> None:
    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    found = mappings(pid)
    print(f"{found.total() / 1e6:7.1f} MB  {command[:80]}")
    for name, size in found.most_common(lines):
        print(f"    {size / 1e6:7.2f}  {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--embedded", action="store_true")
    parser.add_argument("--lines", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        system = Klamm("klamm", Path(folder), zookeeper=not options.embedded)
        footprint.warm(system)
        begun = time.monotonic()
        system.start()
        try:
            footprint._one_record(system)
            print(f"{time.monotonic() - begun:.2f} s to the first record")
            footprint._load(system, "footprint-1", options.records)
            for pid in system.pids():
                show(pid, options.lines)
        finally:
            system.stop()


if __name__ == "__main__":
    main()
