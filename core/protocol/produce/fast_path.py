"""The fast path of Produce: reads the request that clients send most in one call, and writes its response in another.

That request has one batch for one partition, acks 1 or -1, no transactional id and no tagged fields, and its batch
breaks no rule that holds for every topic (`records.checked_batch`). Every other request, and one that is damaged
anywhere, reads as None: `request` then reads it and says what is wrong. Read field by field, a small request costs more
than storing its batch.

Both functions are in the compiled module, with equals in `fallback`.
"""

from __future__ import annotations

from ...records.native import IMPLEMENTATION

if IMPLEMENTATION == "native":
    from ...records._native import read_fast_produce_request, write_fast_produce_response
else:
    from .fallback import read_fast_produce_request, write_fast_produce_response

__all__ = ["read_fast_produce_request", "write_fast_produce_response"]
