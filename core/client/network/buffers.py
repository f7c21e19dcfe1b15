"""Memory for answers whose length is known before they come."""

from __future__ import annotations

import ctypes

_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
    ("PyByteArray_FromStringAndSize", ctypes.pythonapi)
)


def unwritten(size: int) -> bytearray:
    """A bytearray whose bytes are anything, to be overwritten. `bytearray(size)` writes zeros, which for a large one
    takes every page from the system at once; this takes each when something is put into it."""
    made = _new(None, size)
    assert isinstance(made, bytearray)
    return made
