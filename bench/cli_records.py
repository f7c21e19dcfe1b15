"""Rates of `klamm produce` and `klamm consume` in pipes, beside `Producer.send_arrow`, and the memory that they take.

    python bench/cli_records.py [RECORDS]

One broker, a topic of one partition for each run: values of 100 bytes, and records of three fields as JSON lines of
about 40 bytes, which `send_arrow` is given as Arrow columns. Ratios are to `send_arrow` of the values. A command's time
is that of its whole process, its start included; that of `send_arrow` is from the call to the last acknowledgement, in
a process that has imported everything. The peak memory of a command is printed for a quarter of the records too: it is
flat if both are alike. The CPU time, user and system, is the client's alone: compare it where other work keeps the
machine busy.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from klamm import Producer
from klammtest.broker import KLAMM, running_broker

SIZE = 100
SCHEMA = {
    "type": "record",
    "name": "Trip",
    "fields": [{"name": "rider", "type": "string"}, {"name": "km", "type": "double"}, {"name": "n", "type": "long"}],
}


def command(line: str, *, records: int, folder: Path) -> tuple[float, float, float]:
    """Runs a shell's pipeline, whose klamm writes what it used; returns records/s, its peak memory in MB, and its
    seconds of CPU."""
    began = time.perf_counter()
    subprocess.run(["/bin/sh", "-c", line], cwd=folder, check=True, stderr=subprocess.DEVNULL)
    took = time.perf_counter() - began
    peak, cpu = (folder / "used").read_text().split()
    return records / took, int(peak) / 1024, float(cpu)


MEASURED = """
import os, sys
process = os.posix_spawn(sys.argv[1], sys.argv[1:], dict(os.environ))
_, status, usage = os.wait4(process, 0)
open("used", "w").write(f"{usage.ru_maxrss} {usage.ru_utime + usage.ru_stime}")
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""Runs a command in a process of its own, and writes its peak memory in kB and its seconds of CPU to the file `used`.
It imports nothing else: its start is part of the command's time."""


def raw_table(records: int) -> pa.Table:
    return pa.table({"value": pa.array([b"%0*d" % (SIZE, n) for n in range(records)], pa.binary())})


def typed_table(records: int) -> pa.Table:
    rows = range(records)
    rider, km = pa.array([f"r{n % 1000}" for n in rows]), pa.array([n / 8 for n in rows])
    return pa.table({"value": pa.StructArray.from_arrays([rider, km, pa.array(rows)], ["rider", "km", "n"])})


def send_arrow(folder: Path, topic: str, table: pa.Table) -> tuple[float, float]:
    """Returns records/s, and seconds of CPU."""
    with Producer(folder / "klamm.yaml") as producer:
        producer.partitions(topic)
        began, used = time.perf_counter(), time.process_time()
        producer.send_arrow(topic, table).result(600)
        return table.num_rows / (time.perf_counter() - began), time.process_time() - used


def main(records: int) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name, running_broker(Path(name)) as broker:
        folder = Path(name)
        (folder / "measured.py").write_text(MEASURED)
        klamm = f"{sys.executable} -S -E measured.py {KLAMM}"
        document = yaml.safe_load(broker.config_path.read_text())
        document["producer"] = document["consumer"] = {"bootstrap.servers": broker.bootstrap}
        document["topics"] = {f"typed-{n}": {"schema": "trip.avsc"} for n in ("arrow", records, records // 4)}
        (folder / "trip.avsc").write_text(json.dumps(SCHEMA))
        broker.config_path.write_text(json.dumps(document))
        topics = [f"{kind}-{n}" for kind in ("raw", "typed") for n in ("arrow", records, records // 4)]
        for topic in topics:
            subprocess.run([KLAMM, "topics", "create", topic, "--partitions", "1"], cwd=folder, check=True)
        for count in (records, records // 4):
            with (folder / f"raw-{count}.txt").open("wb") as out:
                out.writelines(b"%0*d\n" % (SIZE, n) for n in range(count))
            with (folder / f"typed-{count}.txt").open("w") as out:
                out.writelines(f'{{"rider":"r{n % 1000}","km":{n / 8},"n":{n}}}\n' for n in range(count))
        base = 0.0
        for kind, option, made in (("raw", "--raw", raw_table), ("typed", "", typed_table)):
            rate, cpu = send_arrow(folder, f"{kind}-arrow", made(records))
            base = base or rate
            what = f"Producer.send_arrow, {kind}"
            print(f"{what:34} {rate:12,.0f} records/s, {rate / base:.2f}, {cpu:.1f} s of CPU", flush=True)
            for verb, line in (
                ("produce", "cat {t}.txt | {k} produce {t} {o}"),
                ("consume", "{k} consume {t} {o} | cat > {t}.out && cmp {t}.txt {t}.out"),
            ):
                peaks = []
                for count in (records // 4, records):
                    text = line.format(t=f"{kind}-{count}", k=klamm, o=option)
                    rate, peak, cpu = command(text, records=count, folder=folder)
                    peaks.append(peak)
                what = f"klamm {verb} {option or '(JSON by the schema)'}"
                used = f"{cpu:.1f} s of CPU, peak {peaks[1]:.0f} MB ({peaks[0]:.0f} MB at a quarter)"
                print(f"{what:34} {rate:12,.0f} records/s, {rate / base:.2f}, {used}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
