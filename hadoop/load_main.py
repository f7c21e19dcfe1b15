"""The script for spark-submit: `spark-submit --py-files klamm-….whl load_main.py --config klamm.yaml [SINK]`.

The same as `klamm load`, on the Spark that spark-submit chose.
"""

from __future__ import annotations

import sys

from klamm.core.cli.main import main

if __name__ == "__main__":
    sys.argv[1:1] = ["load"]
    main()
