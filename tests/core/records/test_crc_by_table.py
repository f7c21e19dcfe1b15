"""CRC-32C without the processor's instruction: what the compiled module does on a processor that has none."""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from klamm.core.records import fallback

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

NATIVE = Path(__file__).parents[3] / "core/records/native"
BY_TABLE = """
#include "crc32c.c"
uint32_t crc_by_table(uint32_t crc, const uint8_t *data, size_t size) {
    crc32c_prepare();
    hardware = 0;
    return crc32c_extend(crc, data, size);
}
"""


@pytest.fixture(scope="module")
def crc_by_table(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, bytes, int], int]:
    folder = tmp_path_factory.mktemp("crc")
    source, library = folder / "by_table.c", folder / "by_table.so"
    source.write_text(BY_TABLE)
    includes = ("-I", str(NATIVE), "-I", sysconfig.get_path("include"))
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", *includes, "-o", str(library), str(source)], check=True)
    function = ctypes.CDLL(str(library)).crc_by_table
    function.restype = ctypes.c_uint32
    function.argtypes = (ctypes.c_uint32, ctypes.c_char_p, ctypes.c_size_t)
    return lambda crc, data, size: int(function(crc, data, size))


def test_the_check_value(crc_by_table: Callable[[int, bytes, int], int]) -> None:
    assert crc_by_table(0, b"123456789", 9) == 0xE3069283


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 15, 16, 17, 3071, 3072, 3073, 65_539])
def test_any_length_and_seed(crc_by_table: Callable[[int, bytes, int], int], size: int) -> None:
    data = random.Random(size).randbytes(size)
    for seed in (0, 1, 2**32 - 1):
        assert crc_by_table(seed, data, size) == fallback.crc32c(data, seed)
