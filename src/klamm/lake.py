"""Reads a lake without Spark: `dataset(root, topic)` for Arrow, pandas, Polars and DuckDB (extra `arrow`)."""

from __future__ import annotations

from klamm.hadoop.lake.dataset import LakeDataset, dataset

__all__ = ["LakeDataset", "dataset"]
