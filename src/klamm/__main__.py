"""`python -m klamm` is `klamm`. Imports nothing of the command before `main` runs, which takes part of a second."""

from __future__ import annotations

import gc
import sys

__all__ = ["main"]


def main() -> None:
    """The console script. Ctrl-C while the command is being imported ends it with status 130, as later."""
    try:
        gc.disable()  # as `no_collections`, whose import is half of what there is to import
        from klamm.core.garbage import late_first_collection

        late_first_collection()
        from klamm.core.cli.main import main as run

        gc.enable()
    except KeyboardInterrupt:
        sys.exit(130)
    try:
        run()
    finally:
        gc.freeze()  # the process ends: Python would scan all objects, to free memory that the system takes back anyway


if __name__ == "__main__":
    main()
