"""The minimal core: log, broker, consumer group, clients, and the interfaces that plugins implement.

kio is imported here first, without hypothesis: wherever that is installed kio would register test strategies with it,
which takes each process 0.2 to 0.3 s.
"""

import sys

if "hypothesis" in sys.modules:
    import kio.schema.errors
else:
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        import kio.schema.errors  # noqa: F401
    finally:
        del sys.modules["hypothesis"]
