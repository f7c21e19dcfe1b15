"""Hides hypothesis from the processes that tests start: kio imports it wherever it is installed.

It costs each process 0.2 s, and an installed Klamm does not have it. `tests/conftest.py` puts it on their path.
"""

raise ImportError("hypothesis is hidden from spawned processes, see tests/support/spawned/hypothesis.py")
