"""Loads: the `klamm` Spark data source, the load job, the lake's layout and its publishing."""
