"""One Spark for all tests of loads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from klamm.hadoop.session import start_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = start_session("klamm tests", "local[2]", "1g", {"spark.sql.shuffle.partitions": "4"})
    yield session
    session.stop()
