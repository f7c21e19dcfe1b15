"""`python -m klamm` is `klamm`. Imports nothing of the command before `main` runs, which takes part of a second."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """The console script. Ctrl-C while the command is being imported ends it with status 130, as later."""
    try:
        from klamm.core.garbage import rare_collections

        with rare_collections():
            from klamm.core.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
