"""Memory for answers whose length is known before they arrive."""

from __future__ import annotations

import ctypes

_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
    ("PyByteArray_FromStringAndSize", ctypes.pythonapi)
)


def unwritten(size: int) -> bytearray:
    """Returns a bytearray with arbitrary content, to be overwritten. `bytearray(size)` writes zeros, which makes the
    system provide every page of a large one at once; here each page is provided when it is first written.
    """
    made = _new(None, size)
    assert isinstance(made, bytearray)
    return made
