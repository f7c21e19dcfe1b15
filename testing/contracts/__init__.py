"""The requirements on every implementation of an interface: a class of tests for each interface of `klamm.plugin`.

Derive a test class from a suite, define what its docstring names, and run pytest:

    class TestBzip2(CodecContract):
        @pytest.fixture
        def codec(self):
            return Bzip2()

The same suites run on the plugins that Klamm ships. They need pytest; each is imported on first use.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from klamm._lazy import lazy_attributes

if TYPE_CHECKING:
    from klamm.testing.contracts.audit import AuditContract
    from klamm.testing.contracts.codec import CodecContract
    from klamm.testing.contracts.coordination import CoordinationContract
    from klamm.testing.contracts.coordination_cases import CoordinationUnderTest, SessionEvents, WatchSignal
    from klamm.testing.contracts.coordination_sessions import CoordinationSessionsContract
    from klamm.testing.contracts.coordination_watches import CoordinationWatchesContract
    from klamm.testing.contracts.envelope import EnvelopeContract
    from klamm.testing.contracts.offset_store import OffsetStoreContract
    from klamm.testing.contracts.serde import SerdeContract
    from klamm.testing.contracts.sink import ExactlyOnceSinkContract, SinkContract
    from klamm.testing.contracts.validator import TopicValidatorContract

__all__ = [
    "AuditContract",
    "CodecContract",
    "CoordinationContract",
    "CoordinationSessionsContract",
    "CoordinationUnderTest",
    "CoordinationWatchesContract",
    "EnvelopeContract",
    "ExactlyOnceSinkContract",
    "OffsetStoreContract",
    "SerdeContract",
    "SessionEvents",
    "SinkContract",
    "TopicValidatorContract",
    "WatchSignal",
]

if find_spec("pytest") is None:
    raise ModuleNotFoundError("the contract suites need pytest, which is not installed: `pip install pytest`")
if not TYPE_CHECKING:
    __getattr__ = lazy_attributes(
        __name__,
        {
            "klamm.testing.contracts.audit": ("AuditContract",),
            "klamm.testing.contracts.codec": ("CodecContract",),
            "klamm.testing.contracts.coordination": ("CoordinationContract",),
            "klamm.testing.contracts.coordination_cases": (
                "CoordinationUnderTest",
                "SessionEvents",
                "WatchSignal",
            ),
            "klamm.testing.contracts.coordination_sessions": ("CoordinationSessionsContract",),
            "klamm.testing.contracts.coordination_watches": ("CoordinationWatchesContract",),
            "klamm.testing.contracts.envelope": ("EnvelopeContract",),
            "klamm.testing.contracts.offset_store": ("OffsetStoreContract",),
            "klamm.testing.contracts.serde": ("SerdeContract",),
            "klamm.testing.contracts.sink": (
                "ExactlyOnceSinkContract",
                "SinkContract",
            ),
            "klamm.testing.contracts.validator": ("TopicValidatorContract",),
        },
    )
