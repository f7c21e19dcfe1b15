"""Runs the examples of a Markdown page, in order, in one folder, as a reader would.

A fence's info string says how: `yaml title=NAME`, `json title=NAME` and `python title=NAME` write a file; `python`
runs; `bash` is pasted whole into a shell, where each command must exit with 0; `console` runs its `$ ` lines in a
shell, where each must exit with 0 (or with the status in `console exit=N`) and the lines after it must occur in its
output, in order (`...` stands for any text); `console background` starts a process and waits for its second line to
appear. Other fences (`text`, `mermaid`) are not run. The ports 9092 (and those after it) and 2181 are replaced by free
ones, so that examples can show the ports that users will use.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt

from klamm.core.spark_jvm import java_options

_SPARK = f"--driver-java-options '{java_options()}' --conf spark.ui.enabled=false pyspark-shell"
"""Options of an example that starts Spark, for a JVM that runs for seconds."""


@dataclass
class Example:
    """One fence: its language, options (`title=x`, `exit=1`, bare words as True) and where it stands."""

    page: Path
    line: int
    language: str
    options: dict[str, str]
    text: str

    @property
    def where(self) -> str:
        return f"{self.page.name}:{self.line}"


def examples(page: Path) -> Iterator[Example]:
    for token in MarkdownIt().parse(page.read_text()):
        if token.type != "fence" or token.map is None:
            continue
        language, *words = token.info.split() or ["text"]
        options = {k: v or "yes" for k, _, v in (word.partition("=") for word in words)}
        yield Example(page, token.map[0] + 1, language, options, token.content)


@dataclass
class Reader:
    """Follows a page in `folder`; `ports` maps the ports that pages name to free ones."""

    folder: Path
    ports: dict[str, str]
    tools: Path = Path(sys.executable).parent
    """The folder with the `klamm` and `python` that the examples run."""
    background: list[subprocess.Popen[str]] = field(default_factory=list)

    def follow(self, page: Path) -> int:
        """Runs all examples and returns their number. Raises AssertionError with page and line."""
        ran = 0
        for example in examples(page):
            ran += self.run(example)
        return ran

    def run(self, example: Example) -> bool:
        text = self._with_free_ports(example.text)
        if "title" in example.options:
            (self.folder / example.options["title"]).write_text(text)
        elif example.language == "python":
            self._shell(example, [sys.executable, "-c", text], text, PYSPARK_SUBMIT_ARGS=_SPARK)
        elif example.language == "bash":
            self.paste(example)
        elif example.language == "console" and "background" in example.options:
            self._start(example, text)
        elif example.language == "console":
            for command, wanted in _commands(text):
                self._check_output(example, command, wanted)
        else:
            return False
        return True

    def _with_free_ports(self, text: str) -> str:
        return re.sub(rf"\b({'|'.join(self.ports)})\b", lambda m: self.ports[m.group()], text)

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": f"{self.tools}:{os.environ['PATH']}", "COLUMNS": "160", "PYTHONUNBUFFERED": "1"}

    def _shell(
        self, example: Example, command: str | list[str], shown: str, _input: str | None = None, **environment: str
    ) -> str:
        env = {**self._environment(), **environment}
        done = subprocess.run(command, shell=isinstance(command, str), cwd=self.folder, env=env,
                              input=_input, text=True, capture_output=True, timeout=400, check=False)  # fmt: skip
        wanted = int(example.options.get("exit", "0"))
        assert done.returncode == wanted, (
            f"{example.where}: exit {done.returncode}, wanted {wanted}: {shown}\n{done.stdout}{done.stderr}"
        )
        return done.stdout + done.stderr

    def paste(self, example: Example) -> str:
        """Passes the text to a shell as its input, as a terminal does: a command that reads its standard input takes
        the lines below it. Returns the output. The file that `klamm init` writes there gets the free ports."""
        text = self._with_free_ports(example.text)
        moved = "; ".join(f"s/{port}/{free}/g" for port, free in self.ports.items())
        script = re.sub(r"^klamm init$", f"klamm init && sed -i '{moved}' klamm.yaml", text, flags=re.MULTILINE)
        return self._shell(example, ["bash", "-e"], text, _input=script)

    def _check_output(self, example: Example, command: str, wanted: list[str]) -> None:
        output = self._shell(example, command, command)
        position = 0
        for line in wanted:
            if not line.strip() or line.strip() == "...":
                continue
            pattern = r"\s+".join(re.escape(word).replace(r"\.\.\.", ".*") for word in line.split())
            found = re.compile(pattern).search(output, position)
            assert found, f"{example.where}: {command!r} did not print {line!r}, but\n{output}"
            position = found.end()

    def _start(self, example: Example, text: str) -> None:
        ((command, wanted),) = _commands(text)
        process = subprocess.Popen(["/bin/sh", "-c", f"exec {command}"], cwd=self.folder, env=self._environment(),
                                   text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
        self.background.append(process)
        seen: list[str] = []
        ready = threading.Event()
        pattern = re.compile(re.escape(wanted[0].strip()).replace(r"\.\.\.", ".*"))

        def drain() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                seen.append(line)
                if pattern.search(line):
                    ready.set()
            process.wait()  # so that the page can wait for its end

        threading.Thread(target=drain, daemon=True).start()
        deadline = time.monotonic() + 120
        while not ready.wait(0.1):
            gone = process.poll() is not None or time.monotonic() > deadline
            assert not gone, f"{example.where}: {command!r} did not print {wanted[0]!r}, but\n{''.join(seen)}"

    def close(self) -> None:
        for process in reversed(self.background):
            process.terminate()
        for process in self.background:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(60)
            if process.stdout is not None:
                process.stdout.close()


def _commands(text: str) -> list[tuple[str, list[str]]]:
    """Returns the `$ ` lines, each with the output lines below it; a backslash at the end continues a line."""
    found: list[tuple[str, list[str]]] = []
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("$ "):
            command = line[2:]
            while command.endswith("\\"):
                command = command[:-1] + next(lines).strip()
            found.append((command, []))
        elif found:
            found[-1][1].append(line)
    return found
