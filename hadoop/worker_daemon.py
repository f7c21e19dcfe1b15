"""The process from which a local Spark forks its Python workers, with their common modules imported once.

Spark's own daemon imports nothing, so each worker imports Arrow, NumPy and the source: 0.7 s of processor time each.
Spark avoids this because some libraries start threads, which a fork does not copy. Here only jemalloc starts one, and
it supports forking; OpenBLAS is configured to start none.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import klamm.hadoop.columnar.files
import klamm.hadoop.load.reading  # noqa: F401

if __name__ == "__main__":
    manager()
