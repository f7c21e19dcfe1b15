"""The epoch checkpoint (KIP-101)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.core import faults
from klamm.core.errors import NoSpaceError, StorageError
from klamm.core.log.state.leader_epochs import LeaderEpochs


@pytest.fixture
def epochs(tmp_path: Path) -> LeaderEpochs:
    """Epoch 1 from 0, 2 from 10, 5 from 20."""
    epochs = LeaderEpochs.read(tmp_path / "leader-epoch-checkpoint")
    for epoch, start in ((1, 0), (2, 10), (5, 20)):
        epochs.assign(epoch, start)
    return epochs


def test_the_file_is_kafka_s(epochs: LeaderEpochs, tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    assert path.read_text() == "1\n3\n1 0\n2 10\n5 20\ncrc32c 118b8c32\n"
    assert LeaderEpochs.read(path).entries() == epochs.entries()


@pytest.mark.parametrize(
    ("asked", "answer"),
    [(5, (5, 30)), (4, (2, 20)), (2, (2, 20)), (1, (1, 10)), (0, (0, 0)), (6, (-1, -1)), (-1, (-1, -1))],
)
def test_end_offsets(epochs: LeaderEpochs, asked: int, answer: tuple[int, int]) -> None:
    assert epochs.end_offset(asked, 30) == answer


def test_no_epoch_is_known_at_first(tmp_path: Path) -> None:
    empty = LeaderEpochs(tmp_path / "x")
    assert (empty.latest, empty.end_offset(0, 5), empty.epoch_at(3)) == (-1, (-1, -1), -1)


def test_epoch_of_an_offset(epochs: LeaderEpochs) -> None:
    assert [epochs.epoch_at(offset) for offset in (0, 9, 10, 19, 20, 1000)] == [1, 1, 2, 2, 5, 5]


def test_epochs_do_not_go_back(epochs: LeaderEpochs) -> None:
    epochs.assign(4, 100)
    epochs.assign(5, 100)
    assert epochs.entries() == [(1, 0), (2, 10), (5, 20)]


def test_truncation(epochs: LeaderEpochs) -> None:
    epochs.truncate_start(15)
    assert epochs.entries() == [(2, 15), (5, 20)]
    epochs.truncate_start(15)
    epochs.truncate_end(20)
    assert epochs.entries() == [(2, 15)]
    epochs.truncate_end(15)
    assert epochs.entries() == []
    epochs.truncate_start(3)


@pytest.mark.parametrize(
    "text", ["", "1\n0\n", "0\n2\n1 1\n", "0\n1\nx y\n", "0\n2\n2 0\n1 5\n", "0\n2\n1 5\n2 0\n", "0"]
)
def test_a_damaged_file_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_text(text)
    with pytest.raises(StorageError, match="is damaged"):
        LeaderEpochs.read(path)


@pytest.fixture
def full_disk(epochs: LeaderEpochs) -> Iterator[None]:
    """The disk has no room from now on."""
    faults.install(faults.ScriptedFaults("files.write@1+=ENOSPC"))
    yield
    faults.install(None)


@pytest.mark.usefixtures("full_disk")
def test_epochs_are_removed_on_a_full_disk_and_written_before_the_next_batch(
    epochs: LeaderEpochs, tmp_path: Path
) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    epochs.truncate_end(20)
    assert (epochs.latest, epochs.durable) == (2, False)
    for change in (
        lambda: epochs.assign(2, 20),
        lambda: epochs.assign(6, 20),
        epochs.sync,
        lambda: epochs.sync(written=True),
    ):
        with pytest.raises(NoSpaceError):
            change()
    assert LeaderEpochs.read(path).latest == 5
    faults.install(None)
    epochs.assign(2, 20)
    assert LeaderEpochs.read(path).latest == 2
    assert epochs.durable


@pytest.mark.usefixtures("full_disk")
def test_an_epoch_begins_on_a_full_disk_and_is_written_before_its_first_batch(
    epochs: LeaderEpochs, tmp_path: Path
) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    epochs.begin(6, 30)
    assert (epochs.latest, epochs.unwritten, epochs.end_offset(5, 40)) == (6, True, (5, 30))
    with pytest.raises(NoSpaceError):
        epochs.assign(6, 30)
    assert LeaderEpochs.read(path).latest == 5
    faults.install(None)
    epochs.assign(6, 30)
    assert (LeaderEpochs.read(path).latest, epochs.unwritten, epochs.durable) == (6, False, True)


@pytest.mark.usefixtures("full_disk")
def test_a_log_restarts_on_a_full_disk(epochs: LeaderEpochs) -> None:
    epochs.clear()
    assert (epochs.latest, epochs.durable) == (-1, False)
