"""The fast path of Produce: reads the request that clients send most in one call, and writes its response in another.

That request has one batch for one partition, acks 1 or -1, no transactional id and no tagged fields, and its batch
breaks no rule that holds for every topic (`records.checked_batch`). Every other request, and one that is damaged
anywhere, reads as None: `request` then reads it and says what is wrong. Read field by field, a small request costs more
than storing its batch.

Both functions are in the compiled module; without it every request goes the general way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...records.native import IMPLEMENTATION

if TYPE_CHECKING or IMPLEMENTATION == "native":
    from ...records._native import read_fast_produce_request, write_fast_produce_response
else:

    def read_fast_produce_request(_: object, /) -> None:
        return None

    write_fast_produce_response = None  # of a request that was read


__all__ = ["read_fast_produce_request", "write_fast_produce_response"]
