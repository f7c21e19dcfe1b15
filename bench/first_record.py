"""From a bare machine to the first record read: `python bench/first_record.py` prints commands and seconds.

Follows README as it stands, with the ports replaced: `git clone` (of this tree), its first block in `text`, which makes
a virtual environment and installs the clone, and the block below it, up to the command that prints the record. Packages
come from the index that pip uses, or from pip's cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from klammtest.pages.documents import examples
from klammtest.ports import free_port

ROOT = Path(__file__).resolve().parents[1]
RECORD = "hello, world"


def main() -> None:
    fences = list(examples(ROOT / "README.md"))
    use = next(n for n, fence in enumerate(fences) if fence.language == "bash")
    install = fences[use - 1].text.strip().splitlines()
    commands = ["git clone -q " + str(ROOT) + " klamm", *install, *fences[use].text.strip().splitlines()]
    port = str(free_port())
    lines = ["trap 'klamm broker stop' ERR"]
    for line in commands:
        lines.append(line.replace("9092", port))
        if line == "klamm init":
            lines.append(f"sed -i s/9092/{port}/ klamm.yaml")
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        shell = subprocess.Popen(
            ["bash", "-e"], cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.write("\n".join(lines) + "\n")
        shell.stdin.close()
        seconds = 0.0
        for line in shell.stdout:
            print(line, end="")
            if line.strip() == RECORD:
                seconds = time.monotonic() - started
        if shell.wait() or not seconds:
            sys.exit(f"no record was read; the shell ended with {shell.returncode}")
    reading = next(n for n, line in enumerate(commands) if "consume" in line or "kcat -C" in line)
    count = sum(line.count("&&") + 1 for line in commands[: reading + 1])
    print(f"first record read after {count} commands and {seconds:.0f} s")


if __name__ == "__main__":
    main()
