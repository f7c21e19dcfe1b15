"""Size of a fresh virtual environment for each extra: `python bench/environment_size.py [EXTRA ...]` prints a table.

Makes a wheel of this tree and, for each extra, an environment without pip in a temporary folder, into which pip puts
the wheel with the extra in the versions of `requirements/`. The sizes are those of `site-packages`, without the `.pyc`
files that pip would compile, in MB of 1,000,000 bytes; beside each, its largest folders and the number of packages.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("", "fast", "arrow", "lake", "web", "registry", "spark", "demo")
LARGEST = 3
MB = 1_000_000


def main(extras: list[str]) -> None:
    print("| extra | MB | packages | seconds of `pip install` | the largest |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as made:
        wheel = build(Path(made, "wheel"))
        for extra in extras or EXTRAS:
            started = time.monotonic()
            site = install(Path(made, extra or "none"), wheel, extra)
            seconds = time.monotonic() - started
            sizes = sizes_of(site)
            packages = len(list(site.glob("*.dist-info")))
            largest = ", ".join(f"{name} {size / MB:.0f}" for name, size in sizes.most_common(LARGEST))
            total = sum(sizes.values()) / MB
            print(f"| {extra or 'none'} | {total:.0f} | {packages} | {seconds:.0f} | {largest} |", flush=True)


def build(folder: Path) -> Path:
    run("pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT))
    (wheel,) = folder.glob("klamm-*.whl")
    return wheel


def install(venv: Path, wheel: Path, extra: str) -> Path:
    """Returns the folder `site-packages`."""
    run("venv", "--without-pip", str(venv))
    pinned = [f"-c{file}" for file in sorted((ROOT / "requirements").glob("*.txt"))]
    wanted = f"{wheel}[{extra}]" if extra else str(wheel)
    run("pip", "--python", str(venv / "bin" / "python"), "install", "-q", "--no-compile", *pinned, wanted)
    (site,) = venv.glob("lib/python*/site-packages")
    return site


def sizes_of(site: Path) -> Counter[str]:
    sizes: Counter[str] = Counter()
    for path in site.rglob("*"):
        if path.is_file() and not path.is_symlink():
            sizes[path.relative_to(site).parts[0]] += path.stat().st_size
    return sizes


def run(module: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", module, *arguments], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
