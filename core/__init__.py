"""The minimal core: log, broker, consumer group, clients, and the interfaces that plugins implement.

All of it is internal: the public names are those of `klamm`, `klamm.errors` and `klamm.plugin`. A module from which
other top-level folders import has `__all__`, which lists what they may use; one without it serves the core alone.

kio is imported here first, without hypothesis: if that is installed kio would register test strategies with it,
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
