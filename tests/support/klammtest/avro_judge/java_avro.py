"""Apache Avro for Java as a process that answers lines of JSON; Maven brings its jars into the cache directory."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from klamm.core.maven import MavenJars

JARS: Final = MavenJars("Apache Avro's jars", "klammtest.avro_judge.java", "avro-judge", "KLAMM_AVRO_JUDGE_JARS")
_SOURCE: Final = Path(__file__).parent / "java" / "AvroJudge.java"
_END_S: Final = 60


class JavaAvro:
    """One process; not thread-safe."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, questions: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the answer of each question; the program says what they hold (`java/AvroJudge.java`)."""
        lines = [json.dumps(question) + "\n" for question in questions]
        writer = threading.Thread(target=self._write, args=(lines,), daemon=True)
        writer.start()
        assert self._process.stdout is not None
        answers = [self._process.stdout.readline() for _ in lines]
        writer.join()
        if not all(answers):
            raise RuntimeError(f"the judge's process ended with {self._process.wait(_END_S)}")
        return [json.loads(answer) for answer in answers]

    def _write(self, lines: list[str]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.writelines(lines)
        self._process.stdin.flush()


@contextmanager
def java_avro(jars: MavenJars = JARS, source: Path = _SOURCE) -> Iterator[JavaAvro]:
    """Starts the program `source` with `jars`; raises `ConfigError` where Maven cannot fetch them."""
    command = (
        "java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jars.find()}/*", str(source),
    )  # fmt: skip
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    try:
        yield JavaAvro(process)
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()
        process.wait(_END_S)
