"""The compiled module under AddressSanitizer and UndefinedBehaviorSanitizer. (`make sanitize`: 20,000 batches.)

Where there is no gcc there is no compiled module either: klamm is installed without it, and its twin serves.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from klammtest.native import sanitized

pytestmark = pytest.mark.skipif(
    sanitized.compiler() is None, reason="no gcc: klamm is installed without its compiled module"
)


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sanitized.build(tmp_path_factory.mktemp("sanitized"))


def test_generated_and_mutated_batches(module: Path) -> None:
    done = sanitized.run(module, "--batches", "120")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("campaign sanitize injected 120 mutated 1200 ")


def test_it_finds_a_byte_read_past_a_buffer(module: Path) -> None:
    done = sanitized.run(module, "--batches", "0", "--plant")
    assert done.returncode == 99
    assert "heap-buffer-overflow" in done.stderr
