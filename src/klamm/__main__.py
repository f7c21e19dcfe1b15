"""`python -m klamm` is `klamm`."""

from __future__ import annotations

from klamm.core.cli.main import main

if __name__ == "__main__":
    main()
