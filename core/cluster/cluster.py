"""One broker's membership of the cluster: its registration, its part in the controller election, and the metadata
image.

States: new → `register` → member → (session expired) → rejoining → member → `close`. A worker thread reacts to watches
and session events: it reads the image, takes part in the election, elects leaders, and rejoins with a new session after
expiry. While the coordination is unavailable the last image stays, and changes raise `CoordinationUnavailableError`.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from uuid import UUID, uuid4

from tenacity import (
    RetryCallState,
    RetryError,
    Retrying,
    retry_if_not_exception_type,
    sleep_using_event,
    stop_when_event_set,
    wait_exponential,
)

from ..errors import KlammError
from ..interfaces.coordination import (
    Coordination,
    CoordinationUnavailableError,
    SessionEvent,
    SessionExpiredError,
    Watch,
)
from ..records.partition import TopicPartition
from .assignment import Replicas
from .brokers.broker_configs import Change, alter_broker_config
from .brokers.registration import BrokerIdentity, DisplacedError, Registration
from .clock_floors import producer_id_floor
from .controller import Controller
from .image import EMPTY_IMAGE, ClusterImage, Endpoint
from .image_reader import read_image
from .leadership import elections
from .producer_ids import allocate_block, skip_used
from .topics import TopicChanges
from .tree import paths
from .tree.bootstrap import create_base_paths

OnChange = Callable[[ClusterImage], None]
OnDisplaced = Callable[[DisplacedError], None]
_MAX_BACK_OFF_S = 2.0
_log = logging.getLogger(__name__)


class Cluster:
    """Blocking and thread-safe. The caller owns `coordination`: it is started here if it has no session, restarted here
    after expiry, and closed by the caller after `close`. `clock` returns seconds since 1970."""

    def __init__(
        self,
        coordination: Coordination,
        broker_id: int,
        endpoint: Endpoint,
        *,
        directory_id: str = "",
        rack: str | None = None,
        clock: Callable[[], float] = time.time,
        random_index: Callable[[int], int] = random.randrange,
        new_id: Callable[[], UUID] = uuid4,
        highest_producer_id: Callable[[], int] = lambda: -1,
        note_producer_id: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`highest_producer_id` returns the highest id that this broker knows to be in use; `note_producer_id` stores,
        so that it survives a restart, the highest id that this broker is about to allocate."""
        self._coordination = coordination
        self.broker_id = broker_id
        identity = BrokerIdentity(broker_id, endpoint, directory_id, rack)
        self._registration = Registration(coordination, identity, clock)
        self._controller = Controller(coordination, broker_id, clock)
        self._topics = TopicChanges(coordination, self._controller, random_index, new_id, clock)
        self._new_id = new_id
        self._clock = clock
        self._highest_producer_id = highest_producer_id
        self._note_producer_id = note_producer_id
        self._allocated = -1
        self._image = EMPTY_IMAGE
        self._image_lock = threading.Lock()
        self._change_lock = threading.Lock()
        self._callbacks: list[OnChange] = []
        self._on_displaced: list[OnDisplaced] = []
        self._watches: list[Watch] = []
        self._broker_epoch = -1
        self._expired = False
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._worker = threading.Thread(target=self._work, name=f"klamm-cluster-{broker_id}", daemon=True)

    def register(self) -> None:
        """Joins the cluster: afterwards this broker is in the image and a controller is elected. Call it once.

        Raises `BrokerError` DUPLICATE_BROKER_REGISTRATION if a live broker has this id, and any `CoordinationError`.
        """
        if self._coordination.session_id == 0:
            self._coordination.start()
        self._coordination.on_session(self._on_session)
        self._join()
        self._worker.start()

    def image(self) -> ClusterImage:
        """Returns the last image read; never blocks."""
        return self._image

    @property
    def broker_epoch(self) -> int:
        """The epoch of this broker's current registration; -1 before the first."""
        return self._broker_epoch

    @property
    def is_controller(self) -> bool:
        """True if this broker is the controller as far as it knows; only a write makes sure."""
        return self._controller.lease is not None

    def on_change(self, callback: OnChange) -> None:
        """Registers a callback for every new image. Callbacks run in order on the thread that read the image: the
        worker, or a thread within one of the changing methods below. A callback must return soon and may call `image`
        only."""
        with self._image_lock:
            self._callbacks.append(callback)

    def on_displaced(self, callback: OnDisplaced) -> None:
        """Registers a callback, called once on the worker's thread, for the case that another broker has taken this
        one's id: this broker must stop serving at once, and never joins again."""
        self._on_displaced.append(callback)

    def confirm(self) -> int | None:
        """Returns the epoch of this broker's registration if the coordination confirms it now; None if it does not, and
        then the worker registers again. Raises any `CoordinationError`."""
        epoch = self._broker_epoch
        try:
            if not self._expired and self._registration.renew(epoch):
                return epoch
        except SessionExpiredError:
            self._expired = True
        self._wake.set()
        return None

    def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str] | None = None,
        replicas: Replicas | None = None,
    ) -> UUID:
        """Creates a topic, with the given replicas or replicas assigned to the live brokers in turn, and returns its
        id. The topic is in `image` when this returns. Raises `BrokerError` with Kafka's code: see
        `TopicChanges.create`."""
        with self._change_lock:
            topic_id = self._topics.create(self._read(), name, partitions, replication_factor, configs or {}, replicas)
            self._read()
            return topic_id

    def check_create_topic(self, name: str, partitions: int) -> None:
        """Raises the errors of `create_topic` without writing (`validate_only`)."""
        self._topics.check_create(self._image, name, partitions)

    def delete_topic(self, name: str, topic_id: UUID | None = None) -> UUID:
        """Deletes a topic and returns its id; with `topic_id`, only if the topic has this id. Raises `BrokerError` as
        `TopicChanges.delete` does."""
        with self._change_lock:
            deleted = self._topics.delete(name, topic_id)
            self._read()
            return deleted

    def deleted_topics(self) -> dict[UUID, str]:
        """Returns the deleted topics whose deletion is not finished: their names by id."""
        return self._topics.deleted()

    def deletion_finished(self, topic_id: UUID) -> None:
        """Removes the record of a deletion: no group has offsets of the topic any more."""
        self._topics.deletion_finished(topic_id)

    def create_partitions(self, name: str, total: int, replicas: Replicas | None = None) -> None:
        """Adds partitions to a topic until it has `total`, with the given replicas or replicas assigned to the live
        brokers in turn."""
        with self._change_lock:
            self._topics.create_partitions(self._read(), name, total, replicas)
            self._read()

    def raise_leader_epochs(self, begun: Mapping[TopicPartition, int]) -> None:
        """Raises the leader epochs of partitions that this broker leads above the epochs in its logs; the new epochs
        are in `image` when this returns."""
        self._topics.raise_leader_epochs(self.broker_id, begun)
        self._read()

    def alter_topic_config(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Sets configuration keys; `None` resets a key to its default. The caller has validated names and values."""
        with self._change_lock:
            self._topics.alter_config(name, changes)
            self._read()

    def alter_broker_config(self, broker_id: int | None, change: Change) -> None:
        """Changes the dynamic configuration of one broker, or of all (None). It is in `image` when this returns;
        watches report it to the other brokers."""
        alter_broker_config(self._coordination, broker_id, change)
        self._read()

    def allocate_producer_ids(self) -> range:
        """Returns a block of producer ids that were never allocated before and never will be again."""
        block = allocate_block(
            self._coordination, self.broker_id, self._highest_used(), floor=producer_id_floor(self._clock())
        )
        self._allocated = max(self._allocated, block.stop - 1)
        self._note_producer_id(self._allocated)
        return block

    def _highest_used(self) -> int:
        """Returns the highest producer id in this broker's logs, or allocated by it to a producer that may not have
        written yet."""
        return max(self._allocated, self._highest_producer_id())

    def close(self) -> None:
        """Leaves the cluster: stops the worker, resigns and unregisters. If the coordination does not respond, the end
        of the session does the same later."""
        self._stop.set()
        self._wake.set()
        if self._worker.is_alive():
            self._worker.join()
        self._cancel_watches()
        if self._coordination.session_id == 0:
            return
        try:
            self._controller.resign()
            self._registration.unregister()
        except KlammError as error:
            _log.warning("broker %d could not unregister: %s", self.broker_id, error)

    def _on_session(self, event: SessionEvent) -> None:
        if event is SessionEvent.EXPIRED:
            self._expired = True
        if event is not SessionEvent.SUSPENDED:
            self._wake.set()

    def _join(self) -> None:
        create_base_paths(self._coordination, self._new_id)
        self._cancel_watches()
        configs = (paths.broker_config(None), paths.broker_config(self.broker_id))
        for path in (paths.BROKER_IDS, paths.CONTROLLER, paths.METADATA_VERSION, *configs):
            self._watches.append(self._coordination.watch(path, self._wake.set))
        self._broker_epoch = self._registration.register()
        skip_used(self._coordination, self.broker_id, self._highest_used())
        self._update(new_session=True)

    def _update(self, *, new_session: bool = False) -> None:
        """Takes part in the election, reads the image, and as controller elects leaders where needed. In a new session
        the whole tree is read, since it may have been restored from a backup."""
        elected = self._controller.elect()
        image = self._read(whole=new_session)
        if elected and (changed := elections(image)):
            with self._change_lock:
                self._topics.set_leaders(changed)
            self._read()

    def _read(self, *, whole: bool = False) -> ClusterImage:
        """Reads the image and calls the callbacks if it has changed. `whole`: read everything, reuse nothing of the
        last image."""
        with self._image_lock:
            previous = self._image
            image = read_image(self._coordination, None if whole or not previous.cluster_id else previous)
            self._image = image
            if image != previous:
                for callback in self._callbacks:
                    _call(callback, image)
            return image

    def _work(self) -> None:
        while not self._stop.is_set():
            self._wake.wait()
            self._wake.clear()
            retrying = Retrying(
                sleep=sleep_using_event(self._stop),
                stop=stop_when_event_set(self._stop),
                wait=wait_exponential(multiplier=0.1, max=_MAX_BACK_OFF_S),
                retry=retry_if_not_exception_type(DisplacedError),
                before_sleep=self._log_retry,
            )
            try:
                retrying(self._catch_up)
            except RetryError:
                return  # stopped during the retries
            except DisplacedError as error:
                for callback in self._on_displaced:
                    callback(error)
                return

    def _catch_up(self) -> None:
        if self._stop.is_set():
            return
        if self._expired:
            self._coordination.restart()
            # Cleared before `_join`: another expiry sets it again, and `_join` then fails and is retried.
            self._expired = False
            try:
                self._join()
            except BaseException:
                self._expired = True
                raise
            _log.info("broker %d has rejoined with epoch %d", self.broker_id, self._broker_epoch)
        else:
            if not self._registration.holds(self._broker_epoch):
                self._broker_epoch = self._registration.register()
                _log.warning("broker %d was not registered: registered, epoch %d", self.broker_id, self._broker_epoch)
            self._update()

    def _log_retry(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        unexpected = None if isinstance(error, KlammError) else error
        level = logging.INFO if isinstance(error, CoordinationUnavailableError) else logging.WARNING
        _log.log(level, "broker %d will retry: %s", self.broker_id, error, exc_info=unexpected)

    def _cancel_watches(self) -> None:
        for watch in self._watches:
            watch.cancel()
        self._watches.clear()


def _call(callback: OnChange, image: ClusterImage) -> None:
    try:
        callback(image)
    except Exception:  # a callback may raise anything; the others must still be called
        _log.exception("cluster listener failed")
