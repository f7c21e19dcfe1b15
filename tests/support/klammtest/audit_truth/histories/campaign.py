"""`make audit-truth HISTORIES=n`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from klamm.hadoop.load import audit as load_audit
from klamm.plugins.audit.counting import producer
from klamm.plugins.audit.event import AuditEvent

from .actors import NoThread
from .generate import History
from .world import passed_as_it_is


class _Threading:
    """Replaces the module `threading` in the producer's audit."""

    Thread = NoThread

    def __getattr__(self, name: str) -> Any:
        import threading

        return getattr(threading, name)


@contextmanager
def in_memory() -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(producer, "threading", _Threading()))
        stack.enter_context(mock.patch.object(load_audit, "EventPublisher", return_value=None))
        logging.getLogger("klamm").setLevel(logging.CRITICAL)
        yield


def history(seed: int, number: int) -> History:
    made = History(f"{seed} {number}")
    if made.encoded:
        made.run()
    else:
        with mock.patch.object(AuditEvent, "encode", passed_as_it_is):
            made.run()
    return made
