"""A broker's membership of the cluster, on its threads: `Cluster` carries out what `ClusterNode` asks for.

States: new → `register` → member → (session expired) → rejoining → member → `close`. A worker thread reacts to watches
and session events (`ClusterNode.catch_up`). While the coordination is unavailable the last image stays, and changes
raise `CoordinationUnavailableError`.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar
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
from ..errors import BrokerError, ErrorCode, KlammError
from ..interfaces.coordination import (
    Coordination,
    CoordinationUnavailableError,
    SessionEvent,
    Watch,
)
from ..log.state.seen_metadata import SeenMetadata
from ..mirror.adoption import PromotionStart
from ..records.partition import TopicPartition
from ..replication.elections import RecoveredEnd
from ..replication.leader import IsrProposal, ProposalOutcome
from ..replication.registrations import BrokerRegistration
from .assignment import Replicas
from .balance import placement_of, preferred_elections
from .brokers.broker_configs import Change
from .brokers.registration import BrokerIdentity, DisplacedError
from .control.tasks import OnElected, Refusals
from .image import BrokerNode, ClusterImage, Endpoint
from .mirrors import MirrorOf
from .node import ClusterNode
from .reassignment import ReplicaAssignment
from .tree.steps import StepRunner, Steps

OnChange = Callable[[ClusterImage], None]
OnDisplaced = Callable[[DisplacedError], None]
T = TypeVar("T")
_MAX_BACK_OFF_S = 2.0
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
        """`endpoints` of all listeners; the first is for clients that name none and, without `inter_broker_listener`,
        for other brokers. `data_ids`: of the log directory, newest first.

        `highest_producer_id` returns the highest id that this broker knows to be in use; `note_producer_id` stores, so
        that it survives a restart, the highest id that this broker is about to allocate. `defaults` returns the
        configuration of topics that set none. `is_reachable` connects to a broker's inter-broker endpoint and returns
        False if the connection is refused; it is called on the worker's thread. `seen`: the last change of the metadata
        that the log directory knows; None for a member without logs. `on_elected` is called after elections that this
        broker makes as the controller.
        """
        self._coordination = coordination
        self.broker_id = broker_id
        self._wake = threading.Event()
        self._stop = threading.Event()
        self.node = ClusterNode(
            coordination,
            BrokerIdentity(broker_id, tuple(endpoints), data_ids, directory_id, rack, inter_broker_listener),
            mutex=threading.Lock,
            on_news=self._publish,
            wake=self._wake.set,
            clock=clock,
            random_index=random_index,
            new_id=new_id,
            highest_producer_id=highest_producer_id,
            note_producer_id=note_producer_id,
            defaults=defaults,
            seen=seen,
            on_elected=on_elected,
        )
        self._callbacks: list[OnChange] = []
        self._on_displaced: list[OnDisplaced] = []
        self._watches: list[Watch] = []
        self._away = False
        self.run = StepRunner(coordination, self._stop.wait, is_reachable, self._watch).run
        self._worker = threading.Thread(target=self._work, name=f"klamm-cluster-{broker_id}", daemon=True)

    def register(self) -> None:
        """Joins the cluster: afterwards this broker is in the image and a controller is elected. Call it once.

        Raises `BrokerError` DUPLICATE_BROKER_REGISTRATION if a live broker has this id, and any `CoordinationError`.
        """
        if self._coordination.session_id == 0:
            self._coordination.start()
        self._coordination.on_session(self._on_session)
        self.run(self.node.join())
        self._worker.start()

    def image(self) -> ClusterImage:
        """Returns the last image read; never blocks."""
        return self.node.image

    @property
    def broker_epoch(self) -> int:
        """The epoch of this broker's current registration; -1 before the first."""
        return self.node.broker_epoch

    @property
    def own_registration(self) -> BrokerRegistration | None:
        """This broker's registration in the image, if it belongs to the present session; else None, and the broker
        neither leads nor follows."""
        return self.node.own_registration

    @property
    def is_controller(self) -> bool:
        """True if this broker was elected controller and has not learned of another; only a write proves it."""
        return self.node.is_controller

    @property
    def is_unavailable(self) -> bool:
        """True if the coordination is not available, by its last session event."""
        return self._away

    @property
    def is_retiring(self) -> bool:
        """True after `retire`."""
        return self.node.is_retiring

    def on_change(self, callback: OnChange) -> None:
        """Registers a callback for every new image and for every change of `own_registration`, such as the end of the
        session, with the image unchanged. Callbacks run in order on the thread that read the image: the worker, or a
        thread within one of the changing methods below. A callback must return soon and may call `image` and
        `own_registration` only."""
        self._callbacks.append(callback)

    def on_displaced(self, callback: OnDisplaced) -> None:
        """Registers a callback for the case that another broker has taken this one's id: this broker must stop serving
        at once, and never joins again. It is called once, on the worker's thread."""
        self._on_displaced.append(callback)

    def confirm(self) -> int | None:
        """Returns the epoch of this broker's registration if the coordination confirms it now; None if it does not, and
        then the worker registers again. Raises any `CoordinationError`."""
        return self.run(self.node.confirm())

    def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str] | None = None,
        replicas: Replicas | None = None,
        mirror: MirrorOf | None = None,
    ) -> UUID:
        """Creates a topic, with the given replicas or replicas assigned to the live brokers in turn, and returns its
        id. `mirror`: what a mirror topic follows. The topic is in `image` when this returns. Raises `BrokerError` with
        Kafka's code: see `TopicChanges.create`."""
        creation = self.node.topics.create(name, partitions, replication_factor, configs or {}, replicas, mirror)
        return self._change(creation)

    def check_create_topic(self, name: str, partitions: int) -> None:
        """Raises the errors of `create_topic` without writing (`validate_only`)."""
        self.node.topics.check_create(self.image(), name, partitions)

    def delete_topic(self, name: str, topic_id: UUID | None = None) -> UUID:
        """Deletes a topic and returns its id; with `topic_id`, only if the topic has this id. Raises `BrokerError` as
        `TopicChanges.delete` does."""
        return self._change(self.node.topics.delete(name, topic_id))

    def deleted_topics(self) -> dict[UUID, str]:
        """Returns the deleted topics whose deletion is not finished: their names by id."""
        return self.run(self.node.topics.deleted())

    def deletion_finished(self, topic_id: UUID) -> None:
        """Removes the record of a deleted topic, of which no group has offsets any more."""
        self.run(self.node.topics.deletion_finished(topic_id))

    def create_partitions(self, name: str, total: int, replicas: Replicas | None = None) -> None:
        """Adds partitions to a topic until it has `total`, with the given replicas or replicas assigned to the live
        brokers in turn."""
        self._change(self.node.topics.create_partitions(name, total, replicas))

    def promote_mirror(self, name: str) -> None:
        """Ends the mirror of a topic; see `TopicChanges.promote`. For the controller."""
        self._change(self.node.topics.promote(name))

    def adopt_mirror(
        self, name: str, link: str, promotions: Mapping[int, PromotionStart], topic_id: UUID | None = None
    ) -> None:
        """Makes a topic a mirror of its former mirror; see `TopicChanges.adopt`. For the controller."""
        self._change(self.node.topics.adopt(name, link, promotions, topic_id))

    def raise_leader_epochs(self, begun: Mapping[TopicPartition, int]) -> None:
        """Raises the leader epochs of partitions that this broker leads above the epochs in its logs; the new epochs
        are in `image` when this returns."""
        self.run(self.node.raise_leader_epochs(begun))

    def alter_topic_config(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Sets configuration keys; `None` resets a key to its default. The caller has validated names and values. Any
        broker may do it, not only the controller."""
        self.run(self.node.alter_topic_config(name, changes))

    def propose(self, proposals: Sequence[tuple[TopicPartition, IsrProposal]]) -> list[ProposalOutcome]:
        """Writes the ISR changes that this broker proposes as leader, in one transaction; returns the outcome of each.

        REFUSED for those that were made from another version than the image's, for those that are too many for one
        change, and for all if a broker to be added is no longer registered. The image is read again before this
        returns, unless the coordination is unavailable.
        """
        return self.run(self.node.propose(proposals))

    def report_recovered(self, ends: Mapping[TopicPartition, RecoveredEnd]) -> None:
        """Reports where logs of this broker end, for partitions without a leader of which it is a doubtful member
        (docs/replication.md, R7). Replaces the last report; ends with the session."""
        self.run(self.node.report_recovered(ends))

    def report_offline(self, partitions: Collection[TopicPartition]) -> None:
        """Reports all partitions whose log is offline on this broker, so that other replicas lead. The report is
        repeated in every new session."""
        self.run(self.node.report_offline(partitions))

    def suspect(self, broker_id: int, incarnation: str) -> None:
        """Reports a broker that refused this one's connections twice. The controller ends its registration, and elects
        other leaders, if it is refused too. If the reported broker is the controller, this one becomes controller
        first."""
        self.run(self.node.suspect(broker_id, incarnation))

    def elect(self, partitions: Collection[TopicPartition] | None, *, unclean: bool = False) -> Refusals:
        """Elects the preferred replica of each partition (all if None), or with `unclean` any live replica where there
        is no leader; returns an error code, `none` where it was elected, and a message for each.

        Raises `BrokerError` NOT_CONTROLLER. Among all partitions those that need no election are left out.
        """
        asked = [tp for tp, _ in self.image().partitions()] if partitions is None else list(partitions)
        results = self._change(self.node.tasks.elect(asked, unclean=unclean))
        if partitions is None:
            return {tp: found for tp, found in results.items() if found[0] is not ErrorCode.election_not_needed}
        return results

    def restore_preferred_leaders(self, most_percent: int) -> list[TopicPartition]:
        """Elects preferred replicas again, if this broker is the controller: those of brokers for which more than
        `most_percent` of the partitions that prefer them are led by others. Returns the partitions that were elected.
        """
        image = self.image()
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
        """Starts the reassignment of each partition to the given replicas (KIP-455), which the controller completes
        once they are in sync; None cancels the one in progress. Returns results as `elect` does."""
        return self._change(self.node.tasks.alter_reassignments(asked, may_change_factor=may_change_factor))

    def reassignments(
        self, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, ReplicaAssignment]:
        """Returns the reassignments in progress, of some partitions or of all."""
        return {
            tp: partition.assignment
            for tp, partition in self.image().partitions()
            if partition.assignment.is_reassigning and (partitions is None or tp in partitions)
        }

    def unregister_broker(self, broker_id: int) -> None:
        """Removes what is stored of a broker that will not return. Raises `BrokerError` NOT_CONTROLLER, and as
        `ControllerTasks.unregister` does."""
        self._change(self.node.tasks.unregister(broker_id))

    def set_leaving(self) -> None:
        """Marks this broker as leaving in its registration and all later ones: the controller moves leaders off it and
        takes it out of in-sync replicas."""
        self.run(self.node.set_leaving())

    def set_full(self, full: bool) -> None:
        """Marks this broker's disk as full, or no longer full, in its registration and all later ones. The controller
        moves leaders off a full broker and takes it out of in-sync replicas, where others have space."""
        self.run(self.node.set_full(full))

    def _change(self, steps: Steps[T]) -> T:
        """Carries out one change of the metadata at a time."""
        return self.run(self.node.changing(steps))

    def has_left(self) -> bool:
        """Returns True if this broker shares no partition's ISR with another replica. It stays the leader of partitions
        that no other live replica can lead."""
        return self.node.has_left()

    def retire(self) -> None:
        """Announces that this broker is about to stop serving: from now on it does not register again when its
        registration or session ends, and does not become the controller. If it is the controller it remains so until
        `close`."""
        self.node.retire()

    def alter_broker_config(self, broker_id: int | None, change: Change) -> None:
        """Changes the dynamic configuration of one broker, or of all (None). It is in `image` when this returns;
        watches report it to the other brokers."""
        self.run(self.node.alter_broker_config(broker_id, change))

    def allocate_producer_ids(self) -> range:
        """Returns a block of producer ids that were never allocated before and never will be again."""
        return self.run(self.node.allocate_producer_ids())

    def close(self) -> None:
        """Leaves the cluster: stops the worker, resigns and unregisters. If the coordination does not answer, the end
        of the session does the same later; the coordination is then closed here, which ends the calls that wait for it.
        """
        self._stop.set()
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
            self.run(self.node.leave_cluster())
        except KlammError as error:
            _log.warning("broker %d could not unregister: %s", self.broker_id, error)

    def _on_session(self, event: SessionEvent) -> None:
        self._away = event is SessionEvent.SUSPENDED
        self.node.on_session(event)

    def _watch(self, wanted: Sequence[str]) -> None:
        self._cancel_watches()
        for path in wanted:
            self._watches.append(self._coordination.watch(path, self._wake.set))

    def _publish(self) -> None:
        for callback in list(self._callbacks):
            _call(callback, self.image())

    def _work(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(self.node.cold_start.left_s() or None)
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
        if not self._stop.is_set():
            self.run(self.node.catch_up())

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
