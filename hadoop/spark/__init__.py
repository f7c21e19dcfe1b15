"""The parts of the `klamm` data source of Spark; `klamm.hadoop.source` assembles them."""
