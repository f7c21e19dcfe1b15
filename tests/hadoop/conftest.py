"""One Spark for all tests of loads."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession

from klamm.hadoop.session import start_session
from klammtest.hadoop.hdfs_client import SPARK


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = start_session(SPARK)
    yield session
    session.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds Java's causes, which PySpark leaves out of an error's text, to the report of a test that failed by one."""
    report = yield
    error = call.excinfo.value if report.failed and call.excinfo is not None else None
    while error is not None and not isinstance(error, CapturedException):
        error = error.__cause__
    if error is not None:
        report.sections.append(("Java's stack trace", str(error._stackTrace)))
    return report
