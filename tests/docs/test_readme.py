"""README's first block, pasted whole into a shell, brings a record from a new broker to a reader and leaves nothing."""

from __future__ import annotations

from pathlib import Path

from klamm.core.log.log_directory import holder
from klammtest.pages.documents import Reader, examples
from klammtest.ports import free_port

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_first_block_as_it_stands(tmp_path: Path) -> None:
    block = next(example for example in examples(README) if example.language == "bash")
    output = Reader(tmp_path, {"9092": str(free_port())}).paste(block)
    lines = output.splitlines()
    assert lines[0].startswith("klamm.yaml written.")
    assert lines[1].startswith("klamm broker ready: id 0, PLAINTEXT://127.0.0.1:")
    assert "hello, world" in lines[2:]
    assert "broker 0 has stopped" in output
    assert holder(tmp_path / "first" / "data") is None
