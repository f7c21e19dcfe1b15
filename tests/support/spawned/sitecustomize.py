"""Makes `time.sleep` work in processes that run under libfaketime (Python imports this module at its start).

With FAKETIME_DONT_FAKE_MONOTONIC libfaketime 0.9.10 answers `clock_nanosleep` with EINVAL, which Python 3.11's
`time.sleep` calls; `select` waits by the true clock.
"""

from __future__ import annotations

import os
import select
import time
from typing import SupportsIndex

if "FAKETIME_TIMESTAMP_FILE" in os.environ:

    def _sleep(seconds: float | SupportsIndex, /) -> None:
        select.select((), (), (), float(seconds))

    time.sleep = _sleep
