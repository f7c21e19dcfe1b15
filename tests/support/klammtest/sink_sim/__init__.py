"""The Spark sink's attempts under random schedules: `make sink-sim`.

Attempts, drivers, logs and the register are simulated; the state machine of an attempt (`klamm.hadoop.spark.attempt`),
the producers (`claims.TaskIdentity`) and the broker's producer state (`klamm.core.log.state.producer_state`) are the
production code. A schedule is a function of its seed.
"""
