"""One Spark for all tests of loads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from klamm.hadoop.session import start_session
from klammtest.hadoop.hdfs_client import SPARK


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = start_session(SPARK)
    yield session
    session.stop()
