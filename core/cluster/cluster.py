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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
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

from ..config.sections.topic import TopicConfig
from ..errors import BrokerError, CoordinationError, ErrorCode, KlammError
from ..interfaces.coordination import (
    Coordination,
    CoordinationUnavailableError,
    Operation,
    SessionEvent,
    SessionExpiredError,
    Watch,
)
from ..log.state.seen_metadata import SeenChange, SeenMetadata
from ..records.partition import TopicPartition
from ..replication.elections import RecoveredEnd
from ..replication.leader import IsrProposal, ProposalOutcome
from ..replication.registrations import BrokerRegistration
from .assignment import Replicas
from .balance import placement_of, preferred_elections
from .brokers.broker_configs import Change, alter_broker_config
from .brokers.clocks import warn_of_clocks
from .brokers.registration import BrokerIdentity, DisplacedError, Registration
from .brokers.reports import report_offline, report_recovered, report_suspect
from .change_writer import ChangeWriter, Plan, name_of_writer, writer_of
from .changes import lacks_change, leader_guard
from .clock_floors import producer_id_floor
from .control.cold_start import ColdStart
from .control.controller import Controller
from .control.leadership import is_led_elsewhere
from .control.tasks import ControllerTasks, OnElected, Refusals
from .features import FeatureUpdate, check_supported
from .image import EMPTY_IMAGE, BrokerNode, ClusterImage, Endpoint
from .image_reader import MetadataWentBackError, read_features, read_image
from .producer_ids import allocate_block, skip_used
from .reassignment import ReplicaAssignment
from .restored import check_history, highest_epoch, is_older
from .topics import TopicChanges
from .tree import paths
from .tree.bootstrap import create_base_paths
from .tree.steps import run_steps

OnChange = Callable[[ClusterImage], None]
OnDisplaced = Callable[[DisplacedError], None]
_MAX_BACK_OFF_S = 2.0
_COLD_START_SESSIONS = 2
"""For how many session time-outs a cluster that starts waits for brokers that are not back."""
_log = logging.getLogger(__name__)


class Cluster:
    """Blocking and thread-safe. The caller owns `coordination`: it is started here if it has no session, restarted here
    after expiry, and closed by the caller after `close`. `clock` returns seconds since 1970."""

    def __init__(
        self,
        coordination: Coordination,
        broker_id: int,
        endpoints: Sequence[Endpoint],
        *,
        data_ids: tuple[str, ...],
        inter_broker_listener: str = "",
        directory_id: str = "",
        rack: str | None = None,
        clock: Callable[[], float] = time.time,
        random_index: Callable[[int], int] = random.randrange,
        new_id: Callable[[], UUID] = uuid4,
        highest_producer_id: Callable[[], int] = lambda: -1,
        note_producer_id: Callable[[int], None] = lambda _: None,
        defaults: Callable[[], TopicConfig] = TopicConfig,
        is_reachable: Callable[[BrokerNode], bool] = lambda _: True,
        seen: SeenMetadata | None = None,
        on_elected: OnElected = lambda *_: None,
    ) -> None:
        """`endpoints` of all listeners; the first is that of clients that name none, and without
        `inter_broker_listener` that of other brokers. `data_ids`: of the log directory, newest first.

        `highest_producer_id` returns the highest id that this broker knows to be in use; `note_producer_id` stores,
        so that it survives a restart, the highest id that this broker is about to allocate. `defaults` returns the
        configuration of topics that set none. `is_reachable` connects to a broker's inter-broker endpoint, and returns
        False if the connection is refused; it is called on the worker's thread. `seen`: the last change of the metadata
        that the log directory knows; None for a member without logs. `on_elected` is told of elections that this broker
        makes as the controller."""
        self._coordination = coordination
        self.broker_id = broker_id
        identity = BrokerIdentity(broker_id, tuple(endpoints), data_ids, directory_id, rack, inter_broker_listener)
        self._registration = Registration(coordination, identity, clock)
        self._controller = Controller(coordination, broker_id, clock, self._on_not_controller)
        name = name_of_writer(broker_id)
        self._writer = ChangeWriter(coordination, lambda whole: self._read(whole=whole), name)
        self._cold_start = ColdStart(name, lambda: _COLD_START_SESSIONS * coordination.session_timeout_s)
        self._topics = TopicChanges(coordination, self._controller, self._writer, random_index, new_id, clock, defaults)
        self._tasks = ControllerTasks(
            coordination, self._controller, self._writer, is_reachable, clock, defaults, self._cold_start, on_elected
        )
        self._seen = seen
        self._checked = False
        """True once the coordination of this session is known not to be older than `seen`."""
        self._went_back = False
        """True from when the coordination was found to be older than `seen` until its tree is read."""
        self._offline: Collection[TopicPartition] = ()
        self._offline_lock = threading.Lock()
        """Held while a report of it is written: an old one would replace a newer one."""
        self._new_id = new_id
        self._clock = clock
        self._highest_producer_id = highest_producer_id
        self._note_producer_id = note_producer_id
        self._allocated = -1
        self._image = EMPTY_IMAGE
        self._image_lock = threading.Lock()
        self._change_lock = threading.Lock()
        self._publish_lock = threading.Lock()
        self._callbacks: list[OnChange] = []
        self._on_displaced: list[OnDisplaced] = []
        self._watches: list[Watch] = []
        self._published: BrokerRegistration | None = None
        """`own_registration` as the callbacks were last called with: the roles depend on it, too."""
        self._broker_epoch = -1
        self._expired = False
        self._away = False
        self._retiring = False
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
    def own_registration(self) -> BrokerRegistration | None:
        """This broker's registration as the image has it, if it is of the present session; else None, and then the
        broker neither leads nor follows."""
        own = None if self._expired else self._registration.own
        node = self._image.brokers.get(self.broker_id)
        if own is None or node is None or node.registration.incarnation != own.incarnation:
            return None
        return node.registration

    @property
    def is_controller(self) -> bool:
        """True if this broker is the controller as far as it knows; only a write makes sure."""
        return self._controller.lease is not None

    @property
    def is_away(self) -> bool:
        """True while the coordination does not answer, as its last event says."""
        return self._away

    @property
    def is_retiring(self) -> bool:
        """True after `retire`."""
        return self._retiring

    def on_change(self, callback: OnChange) -> None:
        """Registers a callback for every new image, and for every other `own_registration`, as at the end of the
        session, with the image as it was. Callbacks run in order on the thread that read the image: the worker, or a
        thread within one of the changing methods below. A callback must return soon and may call `image` and
        `own_registration` only."""
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
            return self._topics.create(name, partitions, replication_factor, configs or {}, replicas)

    def check_create_topic(self, name: str, partitions: int) -> None:
        """Raises the errors of `create_topic` without writing (`validate_only`)."""
        self._topics.check_create(self._image, name, partitions)

    def delete_topic(self, name: str, topic_id: UUID | None = None) -> UUID:
        """Deletes a topic and returns its id; with `topic_id`, only if the topic has this id. Raises `BrokerError` as
        `TopicChanges.delete` does."""
        with self._change_lock:
            return self._topics.delete(name, topic_id)

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
            self._topics.create_partitions(name, total, replicas)

    def raise_leader_epochs(self, begun: Mapping[TopicPartition, int]) -> None:
        """Raises the leader epochs of partitions that this broker leads above the epochs in its logs; the new epochs
        are in `image` when this returns."""
        own = self._registration.own
        if own is None:
            raise SessionExpiredError("this broker is not registered, so it cannot raise leader epochs")
        with self._change_lock:
            self._topics.raise_leader_epochs(self.broker_id, own.incarnation, begun)

    def alter_topic_config(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Sets configuration keys; `None` resets a key to its default. The caller has validated names and values. Any
        broker may do it, not only the controller."""
        own = self._registration.own
        if own is None:
            raise SessionExpiredError("this broker is not registered, so it cannot change configurations")
        with self._change_lock:
            self._topics.alter_config(name, changes, own.incarnation)

    def propose(self, proposals: Sequence[tuple[TopicPartition, IsrProposal]]) -> list[ProposalOutcome]:
        """Writes changes of in-sync replicas that this broker proposes as leader, in one transaction; returns the
        outcome of each.

        REFUSED for those that were made from another version than the image's, for those that are too many for one
        change, and for all if a broker to be added is gone. The image is read again before this returns, unless the
        coordination is unavailable.
        """
        with self._change_lock:
            image = self._image  # the worker may read a newer one meanwhile: on that none is written
            tried = [
                (tp, proposal)
                for tp, proposal in proposals
                if proposal.base_version == image.version and image.partition(tp) is not None
            ][: self._writer.most_states]
            outcome = self._propose(image, tried) if tried else ProposalOutcome.REFUSED
            try:
                self._read()
            except CoordinationError:
                self._wake.set()  # the worker reads as soon as it can
        written = {id(proposal) for _, proposal in tried}
        return [outcome if id(proposal) in written else ProposalOutcome.REFUSED for _, proposal in proposals]

    def _propose(self, image: ClusterImage, proposals: Sequence[tuple[TopicPartition, IsrProposal]]) -> ProposalOutcome:
        own = self.own_registration
        if own is None:
            return ProposalOutcome.REFUSED
        added = {broker.incarnation for _, proposal in proposals for broker in proposal.added}
        states = {tp: proposal.state for tp, proposal in proposals}
        return self._writer.attempt(leader_guard(own.incarnation, sorted(added)), image, Plan(states))

    def report_recovered(self, ends: Mapping[TopicPartition, RecoveredEnd]) -> None:
        """Reports where the logs of this broker end, for partitions without a leader of which it is a doubtful member
        (R7). Replaces the last report; ends with the session."""
        report_recovered(self._coordination, self.broker_id, ends)

    def report_offline(self, partitions: Collection[TopicPartition]) -> None:
        """Reports the partitions whose log is offline here, all of them: other replicas take over. Reported again in
        every new session."""
        with self._offline_lock:
            self._offline = frozenset(partitions)
            report_offline(self._coordination, self.broker_id, self._offline)

    def suspect(self, broker_id: int, incarnation: str) -> None:
        """Says that a broker refused this one's connections twice: if the controller is refused too, it ends that
        registration and elects. If the broker is the controller, this broker takes its place first."""
        report_suspect(self._coordination, self.broker_id, incarnation)
        image = self._image
        node = image.brokers.get(broker_id)
        known = node is not None and node.registration.incarnation == incarnation
        if known and image.controller_id == broker_id and self.own_registration is not None:
            self._controller.take_over(broker_id)
        self._wake.set()

    def elect(self, partitions: Collection[TopicPartition] | None, *, unclean: bool = False) -> Refusals:
        """Elects the preferred replica of each partition (all if None), or with `unclean` any live replica where there
        is no leader; returns an error code, `none` where it was elected, and a message for each.

        Raises `BrokerError` NOT_CONTROLLER. Among all partitions those that need no election are left out.
        """
        asked = [tp for tp, _ in self._image.partitions()] if partitions is None else list(partitions)
        with self._change_lock:
            results = self._tasks.elect(asked, unclean=unclean)
        if partitions is None:
            return {tp: found for tp, found in results.items() if found[0] is not ErrorCode.election_not_needed}
        return results

    def restore_preferred_leaders(self, most_percent: int) -> list[TopicPartition]:
        """Lets preferred replicas lead again, if this broker is the controller: of each broker of which more than
        `most_percent` of the partitions that prefer it are led by others. Returns the partitions that were elected.
        """
        image = self._image
        unable = [number for number, found in image.registrations.items() if not found.takes_records]
        chosen = preferred_elections(placement_of(image), image.brokers, most_percent, unable=unable)
        if not chosen or not self.is_controller:
            return []
        try:
            return [tp for tp, (code, _) in self.elect(chosen).items() if code is ErrorCode.none]
        except BrokerError as error:
            if error.code is not ErrorCode.not_controller:
                raise
            return []

    def alter_reassignments(
        self, asked: Mapping[TopicPartition, Sequence[int] | None], *, may_change_factor: bool = True
    ) -> Refusals:
        """Begins the reassignment of each partition to the given replicas (KIP-455), which the controller completes
        once they are in sync; None cancels the one in progress. Returns results as `elect` does."""
        with self._change_lock:
            return self._tasks.alter_reassignments(asked, may_change_factor=may_change_factor)

    def reassignments(
        self, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, ReplicaAssignment]:
        """Returns the reassignments in progress, of some partitions or of all."""
        return {
            tp: partition.assignment
            for tp, partition in self._image.partitions()
            if partition.assignment.is_reassigning and (partitions is None or tp in partitions)
        }

    def unregister_broker(self, broker_id: int) -> None:
        """Removes what is stored of a broker that is gone for good. Raises `BrokerError` NOT_CONTROLLER, and as
        `ControllerTasks.unregister` does."""
        with self._change_lock:
            self._tasks.unregister(broker_id)

    def update_features(self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False) -> None:
        """Sets finalized feature levels, all or none; they are in `image` when this returns. Raises `BrokerError`
        NOT_CONTROLLER, and as `features.update` does; `validate_only` raises the same and changes nothing."""
        with self._change_lock:
            self._tasks.update_features(updates, validate_only=validate_only)

    def set_leaving(self) -> None:
        """Says that this broker is leaving, in every registration from now on: the controller moves leaders off it and
        takes it out of in-sync replicas."""
        with self._change_lock:
            self._change_registration(self._registration.leave)

    def set_full(self, full: bool) -> None:
        """Says that this broker's disk is full, or has room again, in every registration from now on. The controller
        moves leaders off a full broker and takes it out of in-sync replicas, where others have room."""
        with self._change_lock:
            self._change_registration(lambda: self._registration.mark_full(full))

    def _change_registration(self, change: Callable[[], list[Operation]]) -> None:
        """Applies operations that have checks of their own."""
        self._writer.change(lambda _: (), lambda _: self._registered_as(change()))

    @staticmethod
    def _registered_as(operations: list[Operation]) -> Plan | None:
        return Plan(operations=operations) if operations else None

    def has_left(self) -> bool:
        """Returns True if no partition needs this broker: in none it is one of several in-sync replicas. It stays the
        leader of those that no other live replica can lead."""
        return is_led_elsewhere(self._image, self.broker_id)

    def retire(self) -> None:
        """Says that this broker is about to stop serving: if its registration or session ends from now on, it does not
        register again, and it does not become the controller. It remains the controller, if it is, until `close`."""
        self._retiring = True

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
        """Leaves the cluster: stops the worker, resigns and unregisters. If the coordination does not answer, the end
        of the session does the same later; the coordination is then closed here, which ends the calls that wait for it.
        """
        self._stop.set()
        self._writer.stop()
        self._wake.set()
        away = self._away
        if away:
            _log.warning(
                "broker %d does not unregister, since the coordination does not answer: its registration ends with its "
                "session", self.broker_id,
            )  # fmt: skip
            self._coordination.close()
        if self._worker.is_alive():
            self._worker.join()
        self._cancel_watches()
        if away or self._coordination.session_id == 0:
            return
        try:
            self._controller.resign()
            self._registration.unregister()
        except KlammError as error:
            _log.warning("broker %d could not unregister: %s", self.broker_id, error)

    def _on_session(self, event: SessionEvent) -> None:
        self._away = event is SessionEvent.SUSPENDED
        if event is SessionEvent.EXPIRED:
            self._expired = True
            self._checked = False
        if event is not SessionEvent.SUSPENDED:
            self._wake.set()

    def _join(self) -> None:
        create_base_paths(self._coordination, self._new_id)
        self._cancel_watches()
        configs = (paths.broker_config(None), paths.broker_config(self.broker_id))
        reported = (paths.RECOVERED, paths.OFFLINE, paths.SUSPECTS)
        for path in (paths.BROKER_IDS, paths.CONTROLLER, paths.METADATA_VERSION, *reported, *configs):
            self._watches.append(self._coordination.watch(path, self._wake.set))
        self._check_history()
        if self._went_back:
            # A registration and a lease that the backup has are of another time: they would not tell the states that
            # are made from now on from those of the backup.
            self._controller.resign()
            self._registration.begin_anew()
        check_supported(self.broker_id, read_features(self._coordination))
        self._broker_epoch = self._registration.register()
        with self._offline_lock:
            if self._offline:
                report_offline(self._coordination, self.broker_id, self._offline)
        skip_used(self._coordination, self.broker_id, self._highest_used())
        elected = self._controller.elect()
        # The whole tree, which may have been restored from a backup.
        image = self._read(whole=True, first=True)
        self._cold_start.registered(self._broker_epoch, image.version)
        if elected:
            self._control(image)

    def _check_history(self) -> None:
        """Raises `RestoredError` if this broker must not join, since the coordination is older than its logs."""
        if self._seen is not None:
            own = self._registration.own  # of this session, if the broker has not lost it
            noticed = check_history(
                self._coordination, self.broker_id, self._seen.last, self._stop.wait, in_session=own is not None
            )
            self._went_back = self._went_back or noticed
        self._checked = True

    def _control(self, image: ClusterImage) -> None:
        """Does the controller's work, from the image that was just read."""
        try:
            left_s = self._cold_start.left_s()
            if left_s and self._tasks.holds_elections(image):
                _log.info("partitions wait up to %.0f s for replicas that are not back", left_s)
            suspects = self._tasks.suspects(image)
            with self._change_lock:
                self._tasks.catch_up(image, suspects)
        except BrokerError as error:
            if error.code is not ErrorCode.not_controller:
                raise
            self._wake.set()

    def _read(self, *, whole: bool = False, first: bool = False) -> ClusterImage:
        """Reads the image and calls the callbacks if it has changed. `whole`: read everything, reuse nothing of the
        last image. `first`: of a session.

        Raises `MetadataWentBackError` if the coordination is older than the last image, but not at the first read; the
        worker then joins again.
        """
        with self._image_lock:
            previous = self._image
            image = replace(self._newest(previous, whole=whole, first=first), history=previous.history)
            if self._went_back and (first or self._seen is None):
                image = replace(image, history=previous.history + 1)
                self._went_back = False
            self._image = image
            if not whole and self.is_controller:
                warn_of_clocks(previous, image, self._clock())
            writer = image.brokers.get(writer_of(image.by))
            self._cold_start.saw(image.version, image.by, None if writer is None else writer.epoch)
            if self._seen is not None and (self._checked or first):  # the first read follows a check
                epoch = max(highest_epoch(previous, image), self._seen.last.leader_epoch if self._seen.last else -1)
                self._seen.note(SeenChange(image.version, image.by, epoch))
            self._publish(always=image != previous)
            return image

    def _newest(self, previous: ClusterImage, *, whole: bool, first: bool) -> ClusterImage:
        if not previous.cluster_id or first:
            image = read_image(self._coordination)
            seen = self._seen.last if self._seen is not None and not self._went_back else None
            if seen is not None and is_older(self._coordination, seen):  # since `_check_history`
                raise MetadataWentBackError(
                    "the coordination was restored from an older backup while this broker joined it; start it again"
                )
            return image
        try:
            if whole and run_steps(self._coordination, lacks_change(previous.version, previous.by)):
                raise MetadataWentBackError("the coordination was restored from an older backup")
            return read_image(self._coordination, None if whole else previous)
        except MetadataWentBackError:
            self._went_back = True
            if self._seen is None:
                return read_image(self._coordination)
            self._checked, self._expired = False, True
            self._wake.set()
            raise

    def _publish(self, *, always: bool) -> None:
        """Calls the callbacks; unless `always`, only if this broker's registration is another one than at the last
        call. A registration that changes from then on is followed by a read."""
        with self._publish_lock:
            own = self.own_registration
            if always or own != self._published:
                self._published = own
                for callback in self._callbacks:
                    _call(callback, self._image)

    def _on_not_controller(self) -> None:
        """Wakes the worker if the image names this broker as the controller. It has no lease then and must be elected
        again, and no watch would wake it."""
        if self._image.controller_id == self.broker_id:
            self._wake.set()

    def _work(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(self._cold_start.left_s() or None)
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
            self._publish(always=True)
            if self._retiring:
                return
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
            image = self._read()
            if self._retiring:
                if self.is_controller:
                    self._control(image)
                return
            if self.own_registration is None and not self._registration.holds(self._broker_epoch):
                # Read again: the states may be of before a restore, and the registrations of after it.
                self._read()
                self._broker_epoch = self._registration.register()
                _log.warning("broker %d was not registered: registered, epoch %d", self.broker_id, self._broker_epoch)
                image = self._read()
            if self._controller.elect():
                self._control(image)

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
