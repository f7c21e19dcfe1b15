"""The contract of the coordination holds for the simulated one too; brokers run on the others only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from klammsim.coordination_case import SimulatedCase
from klammtest.etcd import EtcdCase
from klammtest.zookeeper import CoordinationCase, EmbeddedCase, ZooKeeperCase
from klammtest.zookeeper_ensemble import ZooKeeperEnsemble

ON_AN_ENSEMBLE = {
    "test_a_change_of_500_partitions_is_one_transaction",
    "test_a_transaction_fails_as_a_whole_and_names_the_path",
    "test_a_transaction_sees_its_own_operations_in_order",
    "test_a_write_in_flight_at_expiry_never_applies",
    "test_an_evicted_ephemeral_path_is_seen_by_its_owner",
    "test_an_expired_session_loses_its_ephemeral_paths_and_says_so",
    "test_conditional_writes_from_many_threads_lose_nothing",
    "test_creation_ids_grow_over_all_paths_and_sessions",
    "test_ephemeral_paths_belong_to_a_session",
    "test_restart_gives_a_new_session",
    "test_thousands_are_read_at_once",
    "test_transactions_from_many_threads_keep_two_paths_equal",
}
"""Tests of the contract in which several servers could differ from one; they run on an ensemble of three too."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each coordination in turn."""
    if "coordination_case" in metafunc.fixturenames:
        of_coordination = metafunc.definition.path.name.startswith("test_coordination")
        names = ["embedded", "zookeeper", "etcd", *(["simulated"] if of_coordination else [])]
        if metafunc.function.__name__ in ON_AN_ENSEMBLE:
            names.append("ensemble")
        metafunc.parametrize("coordination_case", names, indirect=True)


@pytest.fixture
def coordination_case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CoordinationCase]:
    """Made by the name that `pytest_generate_tests` gives."""
    case: CoordinationCase
    if request.param == "embedded":
        case = EmbeddedCase(tmp_path)
    elif request.param == "zookeeper":
        case = ZooKeeperCase(request.getfixturevalue("zookeeper_server"))
    elif request.param == "ensemble":
        ensemble: ZooKeeperEnsemble = request.getfixturevalue("zookeeper_ensemble")
        case = ZooKeeperCase(ensemble.follower())  # sessions at two servers may read what the other has not seen yet
    elif request.param == "etcd":
        case = EtcdCase(request.getfixturevalue("etcd_server"))
    else:
        case = SimulatedCase()
    yield case
    case.close()
