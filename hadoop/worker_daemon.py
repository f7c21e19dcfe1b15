"""The process that a local Spark forks its Python workers from, with what they all import imported once.

Spark's own daemon imports nothing, so that each worker imports Arrow, NumPy and the source for itself: 0.7 s of
processor time each. Spark forbears because some libraries start threads, which a fork does not take along. Here these
are jemalloc's alone, which is made for being forked; OpenBLAS is told to start none.
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
