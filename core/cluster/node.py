"""One broker's membership of the cluster, without I/O and threads: its registration, its part in the controller
election, and the metadata image.

Every method that reads or writes the coordination returns `Steps`; `Cluster` carries them out on its threads, and the
simulation one request at a time, in virtual time. States: new → `join` → member → (session expired) → rejoining, by
`catch_up` → member → `leave_cluster`. Mutexes order what several threads do: one changes the metadata at a time, and
one reads the image.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar
from uuid import UUID, uuid4

from ..config.sections.topic import TopicConfig
from ..errors import BrokerError, CoordinationError, ErrorCode
from ..interfaces.coordination import Operation, SessionEvent, SessionExpiredError
from ..log.state.seen_metadata import SeenChange
from ..records.partition import TopicPartition
from ..replication.elections import RecoveredEnd
from ..replication.leader import IsrProposal, ProposalOutcome
from ..replication.partition_state import PartitionState
from ..replication.registrations import BrokerRegistration
from .brokers.broker_configs import Change, alter_broker_config
from .brokers.clocks import warn_of_clocks
from .brokers.registration import BrokerIdentity, Registration
from .brokers.reports import report_offline, report_recovered, report_suspect
from .change_writer import ChangeWriter, Plan, name_of_writer, no_guard, writer_of
from .changes import lacks_change, leader_guard
from .clock_floors import producer_id_floor
from .control.cold_start import ColdStart
from .control.controller import Controller
from .control.leadership import is_led_elsewhere
from .control.tasks import ControllerTasks, OnElected
from .image import EMPTY_IMAGE, ClusterImage, PartitionImage
from .image_reader import MetadataWentBackError, image_steps
from .producer_ids import allocate_block, skip_used
from .restored import check_history, highest_epoch, is_older
from .topics import TopicChanges
from .tree import paths
from .tree.bootstrap import base_paths
from .tree.steps import Acquire, Mutex, Session, Steps, holding, restart, set_watches

T = TypeVar("T")
_COLD_START_SESSIONS = 2
"""The number of session time-outs for which a starting cluster waits for brokers that are not back."""
_log = logging.getLogger(__name__)


class Seen(Protocol):
    """The last change of the metadata that the log directory knows: see `core.log.state.seen_metadata`."""

    @property
    def last(self) -> SeenChange | None: ...

    def note(self, seen: SeenChange) -> None: ...


class ClusterNode:
    """See `Cluster`, whose methods of the same names carry out the steps. Methods that do not return `Steps` use the
    last image and return at once, on any thread."""

    def __init__(
        self,
        session: Session,
        identity: BrokerIdentity,
        *,
        mutex: Callable[[], Mutex],
        on_news: Callable[[], None],
        wake: Callable[[], None],
        name: str | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
        random_index: Callable[[int], int] = random.randrange,
        new_id: Callable[[], UUID] = uuid4,
        highest_producer_id: Callable[[], int] = lambda: -1,
        note_producer_id: Callable[[int], None] = lambda _: None,
        defaults: Callable[[], TopicConfig] = TopicConfig,
        seen: Seen | None = None,
        on_elected: OnElected = lambda *_: None,
    ) -> None:
        """`mutex` creates a mutex. `on_news` is called after the image or `own_registration` has changed, by one
        sequence of steps at a time. `wake` requests `catch_up`. `name` is unique; the names of this process's changes
        begin with it."""
        self.broker_id = identity.broker_id
        self._session = session
        self._on_news = on_news
        self._wake = wake
        self._name = name or name_of_writer(identity.broker_id)
        self._clock = clock
        self._monotonic = monotonic
        self._uniform = uniform
        self._new_id = new_id
        self._highest_producer_id = highest_producer_id
        self._note_producer_id = note_producer_id
        self._seen = seen
        self.registration = Registration(session, identity, clock, new_id)
        self.controller = Controller(session, identity.broker_id, clock, mutex(), self._on_not_controller)
        self._writer = ChangeWriter(session, lambda whole: self.read(whole=whole), self._name, uniform)
        self.cold_start = ColdStart(self._name, lambda: _COLD_START_SESSIONS * session.session_timeout_s, monotonic)
        self.topics = TopicChanges(self.controller, self._writer, random_index, new_id, clock, defaults)
        self.tasks = ControllerTasks(
            session, self.controller, self._writer, clock, defaults, self.cold_start, on_elected, monotonic
        )
        self._changing = mutex()
        self._reading = mutex()
        self._publishing = mutex()
        self._reporting = mutex()
        """Held while a report is written, so that an old report cannot replace a newer one."""
        self._offline: Collection[TopicPartition] = ()
        self._checked = False
        """True once the coordination of this session is known not to be older than `seen`."""
        self._went_back = False
        """True from the time the coordination was found to be older than `seen` until its tree is read."""
        self._published: BrokerRegistration | None = None
        """`own_registration` as of the last call of `on_news`."""
        self._checks = 0
        self._allocated = -1
        self._expired = False
        self.image = EMPTY_IMAGE
        self.broker_epoch = -1
        """The epoch of this broker's current registration; -1 before the first."""
        self.is_retiring = False
        """True after `retire`."""

    @property
    def own_registration(self) -> BrokerRegistration | None:
        """This broker's registration in the image, if it belongs to the present session; else None, and the broker
        neither leads nor follows."""
        own = None if self._expired else self.registration.own
        node = self.image.brokers.get(self.broker_id)
        if own is None or node is None or node.registration.incarnation != own.incarnation:
            return None
        return node.registration

    @property
    def is_controller(self) -> bool:
        """True if this broker was elected controller and has not learned of another; only a write proves it."""
        return self.controller.lease is not None

    def retire(self) -> None:
        """See `Cluster.retire`."""
        self.is_retiring = True

    # -- the session ---------------------------------------------------------------------------------------------

    def on_session(self, event: SessionEvent) -> None:
        if event is SessionEvent.EXPIRED:
            self._expired = True
            self._checked = False
        if event is not SessionEvent.SUSPENDED:
            self._wake()

    def join(self) -> Steps[None]:
        """Joins the cluster in the present session: afterwards this broker is in the image and a controller is
        elected."""
        yield from base_paths(self._new_id)
        configs = (paths.broker_config(None), paths.broker_config(self.broker_id))
        reported = (paths.RECOVERED, paths.OFFLINE, paths.SUSPECTS)
        yield from set_watches((paths.BROKER_IDS, paths.CONTROLLER, paths.METADATA_VERSION, *reported, *configs))
        yield from self._check_history()
        if self._went_back:
            # A registration and a lease that the backup has are of another time: they would not distinguish states that
            # are made from now on from those of the backup.
            yield from self.controller.resign()
            yield from self.registration.begin_anew()
        self.broker_epoch = yield from self.registration.register()
        yield from holding(self._reporting, self._report_offline())
        yield from skip_used(self.broker_id, self._highest_used())
        elected = yield from self.controller.elect()
        # The whole tree, which may have been restored from a backup.
        image = yield from self.read(whole=True, first=True)
        self.cold_start.registered(self.broker_epoch, image.version)
        if elected:
            yield from self._control(image)

    def _check_history(self) -> Steps[None]:
        """Raises `RestoredError` if this broker must not join, since the coordination is older than its logs."""
        if self._seen is not None:
            own = self.registration.own  # of this session, if the broker has not lost it
            self._checks += 1
            noticed = yield from check_history(
                self._session, self.broker_id, self._seen.last, f"{self._name}-h{self._checks}", self._monotonic,
                self._uniform, in_session=own is not None,
            )  # fmt: skip
            self._went_back = self._went_back or noticed
        self._checked = True

    def catch_up(self) -> Steps[None]:
        """Reacts to whatever has happened: reads the image, takes part in the election, elects leaders, and joins again
        with a new session after the last has ended. After an error the caller calls it again."""
        if self._expired:
            yield from self._publish(changed=True)
            if self.is_retiring:
                return
            yield from restart()
            # Cleared before `join`: another expiry sets it again, and `join` then fails and is retried.
            self._expired = False
            try:
                yield from self.join()
            except BaseException:
                self._expired = True
                raise
            _log.info("broker %d has rejoined with epoch %d", self.broker_id, self.broker_epoch)
            return
        image = yield from self.read()
        if self.is_retiring:
            if self.is_controller:
                yield from self._control(image)
            return
        if self.own_registration is None and not (yield from self.registration.holds(self.broker_epoch)):
            # Read again: the states may be of before a restore, and the registrations of after it.
            yield from self.read()
            self.broker_epoch = yield from self.registration.register()
            _log.warning("broker %d was not registered: registered, epoch %d", self.broker_id, self.broker_epoch)
            image = yield from self.read()
        if (yield from self.controller.elect()):
            yield from self._control(image)

    def _control(self, image: ClusterImage) -> Steps[None]:
        """Does the controller's work, from the image that was just read."""
        try:
            left_s = self.cold_start.left_s()
            if left_s and self.tasks.holds_elections(image):
                _log.info("partitions wait up to %.0f s for replicas that are not back", left_s)
            suspects = yield from self.tasks.suspects(image)
            yield from holding(self._changing, self.tasks.catch_up(image, suspects))
        except BrokerError as error:
            if error.code is not ErrorCode.not_controller:
                raise
            self._wake()

    def _on_not_controller(self) -> None:
        """Wakes the worker if the image names this broker as the controller. It has no lease then and must be elected
        again, and no watch would wake it."""
        if self.image.controller_id == self.broker_id:
            self._wake()

    def confirm(self) -> Steps[int | None]:
        """See `Cluster.confirm`."""
        epoch = self.broker_epoch
        try:
            if not self._expired and (yield from self.registration.renew(epoch)):
                return epoch
        except SessionExpiredError:
            self._expired = True
        self._wake()
        return None

    def leave_cluster(self) -> Steps[None]:
        """Resigns and unregisters."""
        yield from self.controller.resign()
        yield from self.registration.unregister()

    # -- the image -----------------------------------------------------------------------------------------------

    def read(self, *, whole: bool = False, first: bool = False) -> Steps[ClusterImage]:
        """Reads the image and calls `on_news`. `whole`: reads the whole tree and reuses nothing of the last image.
        `first`: it is the first read of a session.

        Raises `MetadataWentBackError` if the coordination is older than the last image, except at the first read; the
        broker then joins again.
        """
        return holding(self._reading, self._read(whole=whole, first=first))

    def _read(self, *, whole: bool, first: bool) -> Steps[ClusterImage]:
        previous = self.image
        image = yield from self._newest(previous, whole=whole, first=first)
        history = previous.history
        if self._went_back and (first or self._seen is None):
            history += 1
            self._went_back = False
        if image.history != history:
            image = replace(image, history=history)
        self.image = image
        if not whole and self.is_controller:
            warn_of_clocks(previous, image, self._clock())
        writer = image.brokers.get(writer_of(image.by))
        self.cold_start.saw(image.version, image.by, None if writer is None else writer.epoch)
        if self._seen is not None and (self._checked or first):  # the first read follows a check
            epoch = max(highest_epoch(previous, image), self._seen.last.leader_epoch if self._seen.last else -1)
            self._seen.note(SeenChange(image.version, image.by, epoch))
        yield from self._publish(changed=image != previous)
        return image

    def _publish(self, *, changed: bool) -> Steps[None]:
        """Calls `on_news` if the image has `changed`, or this broker's registration differs from that at the last call,
        since the roles depend on it, too. Each later change of the registration is followed by a read."""
        yield Acquire(self._publishing)
        try:
            own = self.own_registration
            if changed or own != self._published:
                self._published = own
                self._on_news()
        finally:
            self._publishing.release()

    def _newest(self, previous: ClusterImage, *, whole: bool, first: bool) -> Steps[ClusterImage]:
        if not previous.cluster_id or first:
            image = yield from image_steps()
            seen = self._seen.last if self._seen is not None and not self._went_back else None
            if seen is not None and (yield from is_older(seen)):  # since `_check_history`
                raise MetadataWentBackError(
                    "the coordination was restored from an older backup while this broker joined it; start it again"
                )
            return image
        try:
            if whole and (yield from lacks_change(previous.version, previous.by)):
                raise MetadataWentBackError("the coordination was restored from an older backup")
            return (yield from image_steps(None if whole else previous))
        except MetadataWentBackError:
            self._went_back = True
            if self._seen is None:
                return (yield from image_steps())
            self._checked, self._expired = False, True
            self._wake()
            raise

    # -- what this broker says and asks --------------------------------------------------------------------------

    def propose(self, proposals: Sequence[tuple[TopicPartition, IsrProposal]]) -> Steps[list[ProposalOutcome]]:
        """See `Cluster.propose`."""
        return holding(self._changing, self._propose(proposals))

    def _propose(self, proposals: Sequence[tuple[TopicPartition, IsrProposal]]) -> Steps[list[ProposalOutcome]]:
        image = self.image  # another sequence may read a newer one meanwhile: on that none is written
        tried = [
            (tp, proposal)
            for tp, proposal in proposals
            if proposal.base_version == image.version and _is_of_present_leader(proposal.state, image.partition(tp))
        ][: self._writer.most_states]
        outcome = (yield from self._write(image, tried)) if tried else ProposalOutcome.REFUSED
        try:
            yield from self.read()
        except CoordinationError:
            self._wake()  # it is read as soon as it can be
        written = {id(proposal) for _, proposal in tried}
        return [outcome if id(proposal) in written else ProposalOutcome.REFUSED for _, proposal in proposals]

    def _write(
        self, image: ClusterImage, proposals: Sequence[tuple[TopicPartition, IsrProposal]]
    ) -> Steps[ProposalOutcome]:
        own = self.own_registration
        if own is None:
            return ProposalOutcome.REFUSED
        added = {broker.incarnation for _, proposal in proposals for broker in proposal.added}
        states = {tp: proposal.state for tp, proposal in proposals}
        guard = leader_guard(own.incarnation, sorted(added))
        return (yield from self._writer.attempt(guard, image, Plan(states)))

    def raise_leader_epochs(self, begun: Mapping[TopicPartition, int]) -> Steps[None]:
        """See `Cluster.raise_leader_epochs`."""
        own = self._registered("raise leader epochs")
        yield from holding(self._changing, self.topics.raise_leader_epochs(self.broker_id, own, begun))

    def alter_topic_config(self, name: str, changes: Mapping[str, str | None]) -> Steps[None]:
        """See `Cluster.alter_topic_config`."""
        own = self._registered("change configurations")
        yield from holding(self._changing, self.topics.alter_config(name, changes, own))

    def _registered(self, what: str) -> str:
        own = self.registration.own
        if own is None:
            raise SessionExpiredError(f"this broker is not registered, so it cannot {what}")
        return own.incarnation

    def report_recovered(self, ends: Mapping[TopicPartition, RecoveredEnd]) -> Steps[None]:
        """See `Cluster.report_recovered`."""
        own = self._registered("report where its logs end")
        return holding(self._reporting, report_recovered(self._session, self.broker_id, own, ends))

    def report_offline(self, partitions: Collection[TopicPartition]) -> Steps[None]:
        """See `Cluster.report_offline`."""
        return holding(self._reporting, self._report_offline(frozenset(partitions)))

    def _report_offline(self, partitions: Collection[TopicPartition] | None = None) -> Steps[None]:
        """Reports the partitions that are offline now, or repeats the last report."""
        again = partitions is None
        self._offline = self._offline if partitions is None else partitions
        if self._offline or not again:
            own = self._registered("report which of its logs are offline")
            yield from report_offline(self._session, self.broker_id, own, self._offline)

    def suspect(self, broker_id: int, incarnation: str) -> Steps[None]:
        """See `Cluster.suspect`."""
        yield from report_suspect(self.broker_id, incarnation)
        image = self.image
        node = image.brokers.get(broker_id)
        known = node is not None and node.registration.incarnation == incarnation
        if known and image.controller_id == broker_id and self.own_registration is not None:
            yield from self.controller.take_over(broker_id)
        self._wake()

    def set_leaving(self) -> Steps[None]:
        """See `Cluster.set_leaving`."""
        return self._change_registration(self.registration.leave)

    def set_full(self, full: bool) -> Steps[None]:
        """See `Cluster.set_full`."""
        return self._change_registration(lambda: self.registration.mark_full(full))

    def _change_registration(self, change: Callable[[], Steps[list[Operation]]]) -> Steps[None]:
        """Applies operations that check the registration themselves."""

        def plan(_: ClusterImage) -> Steps[Plan | None]:
            operations = yield from change()
            return Plan(operations=operations) if operations else None

        yield from holding(self._changing, self._writer.change(no_guard, plan))

    def has_left(self) -> bool:
        """See `Cluster.has_left`."""
        return is_led_elsewhere(self.image, self.broker_id)

    def alter_broker_config(self, broker_id: int | None, change: Change) -> Steps[None]:
        """See `Cluster.alter_broker_config`."""
        yield from alter_broker_config(broker_id, change)
        yield from self.read()

    def allocate_producer_ids(self) -> Steps[range]:
        """See `Cluster.allocate_producer_ids`."""
        floor = producer_id_floor(self._clock())
        block = yield from allocate_block(self.broker_id, self._highest_used(), floor=floor)
        self._allocated = max(self._allocated, block.stop - 1)
        self._note_producer_id(self._allocated)
        return block

    def skip_used_producer_ids(self) -> Steps[None]:
        """Makes the next block of any broker start above the ids in this broker's logs."""
        yield from skip_used(self.broker_id, self._highest_used())

    def _highest_used(self) -> int:
        """Returns the highest producer id in this broker's logs, or allocated by it to a producer that may not have
        written yet."""
        return max(self._allocated, self._highest_producer_id())

    # -- as the controller ---------------------------------------------------------------------------------------

    def changing(self, steps: Steps[T]) -> Steps[T]:
        """Carries out steps of `topics` or `tasks`; this broker makes no other change meanwhile."""
        return holding(self._changing, steps)


def _is_of_present_leader(proposed: PartitionState, partition: PartitionImage | None) -> bool:
    """Returns True if the proposal was made under the leader that the image has. One from before a restore may have the
    number of the image, which counts up again from the backup's."""
    return partition is not None and (
        (proposed.leader_epoch, proposed.leader_broker_epoch)
        == (partition.state.leader_epoch, partition.state.leader_broker_epoch)
    )
