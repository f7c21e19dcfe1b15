"""When a log directory's data gets a new identity."""

from __future__ import annotations

from itertools import count

import pytest

from klamm.core.log.data_ids import LATEST_DATA_IDS, DataIdentity, identity_at_start
from klamm.core.replication.registrations import BrokerRegistration, Standing, standing


def start(found: DataIdentity | None, boot_id: str = "b1", *, recovery_cut: bool = False) -> DataIdentity:
    return identity_at_start(found, boot_id, lambda: "new", recovery_cut=recovery_cut)


def test_a_new_directory_has_no_ancestors() -> None:
    assert start(None) == DataIdentity(("new",), "b1")


@pytest.mark.parametrize(
    ("found", "recovery_cut", "data_ids"),
    [
        (DataIdentity(("a",), "b1"), False, ("a",)),
        (DataIdentity(("a",), "b0", clean=True), False, ("a",)),
        (DataIdentity(("a",), "b0"), False, ("new", "a")),
        (DataIdentity(("a",), "b1", flush_failed=True), False, ("new", "a")),
        (DataIdentity(("a",), "b1", clean=True), True, ("new", "a")),
    ],
    ids=["kill -9", "clean stop, then a reboot", "power loss", "failed flush", "recovery cut records"],
)
def test_a_new_id_where_acknowledged_records_may_be_missing(
    found: DataIdentity, recovery_cut: bool, data_ids: tuple[str, ...]
) -> None:
    assert start(found, recovery_cut=recovery_cut) == DataIdentity(data_ids, "b1")


def test_a_copy_of_the_directory_gets_a_new_id() -> None:
    found = DataIdentity(("a",), "b1", clean=True, place="1:2")
    again = identity_at_start(found, "b1", lambda: "new", recovery_cut=False, place="1:2")
    assert again == DataIdentity(("a",), "b1", place="1:2")
    copy = identity_at_start(found, "b1", lambda: "new", recovery_cut=False, place="3:4")
    assert copy == DataIdentity(("new", "a"), "b1", place="3:4")


@pytest.mark.parametrize(("named", "older"), [((), ()), (("7", "3", "another's"), ("7", "3"))])
def test_the_latest_ancestors_are_kept_and_older_ones_that_a_state_names(
    named: tuple[str, ...], older: tuple[str, ...]
) -> None:
    numbers = count()
    identity = None
    for boot in range(20):
        identity = identity_at_start(identity, f"b{boot}", lambda: str(next(numbers)), recovery_cut=False, named=named)
    assert identity is not None
    latest = tuple(str(number) for number in range(19, 19 - LATEST_DATA_IDS, -1))
    assert identity.data_ids == latest + older


def test_standing_by_data() -> None:
    registration = BrokerRegistration(1, 5, "i", ("c", "b", "a"))
    assert standing(registration, "c") is Standing.SOUND
    assert standing(registration, "a") is Standing.DOUBTFUL
    assert standing(registration, "z") is Standing.NEW
    assert standing(None, "c") is Standing.ABSENT
