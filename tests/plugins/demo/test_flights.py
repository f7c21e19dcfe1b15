from __future__ import annotations

import pyarrow.compute as pc

from klamm.plugins.demo.flights import (
    KEY_FIELDS,
    LATE_DAY,
    flight_key,
    flight_keys,
    load_flights,
    months,
    planted,
    share,
    split_late,
    timestamp_ms,
)


def test_every_flight_has_a_key_of_its_own() -> None:
    flights = load_flights()
    assert flights.num_rows == 336_776
    assert pc.count_distinct(flight_keys(flights)).as_py() == 336_776
    some = flights.slice(1000, 50)
    assert flight_keys(some).to_pylist() == list(map(flight_key, some.to_pylist()))
    assert flights.group_by(list(KEY_FIELDS)).aggregate([]).num_rows == 336_776


def test_producers_share_all_flights_and_the_late_day() -> None:
    in_time, late = split_late(load_flights())
    parts = [share(month, number, 2) for number in range(2) for month in months(in_time)]
    assert sum(part.num_rows for part in parts) + late.num_rows == 336_776
    assert pc.unique(late["day"]).to_pylist() == [LATE_DAY[1]]
    assert late.num_rows == 914


def test_a_flights_time_is_its_scheduled_hour_in_utc() -> None:
    [flight] = load_flights().slice(0, 1).to_pylist()
    assert flight_key(flight) == "2013-1-1/UA/1545/EWR"
    assert timestamp_ms(flight) == 1_357_034_400_000  # 2013-01-01T10:00Z, 5 o'clock in New York


def test_a_small_run_has_every_month() -> None:
    flights = load_flights(limit=10)
    assert flights.num_rows == 120
    assert pc.unique(flights["month"]).to_pylist() == list(range(1, 13))
    assert flight_key(planted(flights)) == "2013-1-1/UA/1545/EWR"
