"""One attempt of a task that writes one topic: a state machine without I/O, which `writing.TopicSink` and the
simulation (`klammtest.sink_sim`) drive.

Rules:
1. The identity of a task's batch is computed, not chosen: producer id and epoch follow from query, topic, task and
   micro-batch (`claims.TaskIdentity.producer`). All attempts send the same sequence numbers, and the broker stores each
   once (KIP-98).
2. The claim is the first record of that producer and epoch in the claims topic, from the register's offset `claims` on.
   The broker stores sequence 0 once, so one attempt's claim is stored, and each other attempt reads that one and adopts
   its partitions and starts. If the broker has forgotten the producer (`producer.id.expiration.ms`), it stores a second
   one, which nobody reads: the log decides, not the broker's answer.
3. The ends of the partitions are read before the register, and the register is stored before the claim. So the starts
   of a batch are below each of its rows, whoever stores them last.
4. An attempt that did not make the claim, or whose batch was refused, searches the log for the rows of its identity,
   leaves them out, and continues with the sequence number after them. It sends nothing before each stored row was found
   among its own rows. One of another run searches in any case: the claims of the run before may have been deleted.
5. The broker takes a batch with the sequence numbers of a stored one for a retry of it, whatever its rows are. So an
   attempt that is not alone reads back what it has sent. The one that made the claim learns at its end whether it was
   alone: each other attempt appends sequence 1 to the claims before it reads the log, and the end is that sequence too.
   If it was not, it compares what it has sent with the log.
6. A task does not know the number of tasks, so another run of the driver may have other tasks. In a batch that another
   run began, an attempt announces that all stored rows of its task are among its own, and sends nothing before each
   task with stored rows has announced it in this run: then no row that is left was stored by another task.
7. A later batch has a higher epoch: the claim of an earlier batch is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from klamm.core.state_table import StateTable

Digest: TypeAlias = bytes
HELD_BYTES: Final = 64 * 1024 * 1024
"""Bytes of rows that wait until the stored rows were found among the attempt's own."""
PATIENCE: Final = 60
"""How many times an attempt checks for the announcements of other tasks."""
SCANS_WITHOUT_PROGRESS: Final = 12
"""Searches after a refused batch that may find nothing new: rows become visible when they are on all replicas."""


class TaskRows(Protocol):
    """Rows of one partition, in their order."""

    @property
    def nbytes(self) -> int: ...

    def __len__(self) -> int: ...

    def digests(self) -> Sequence[Digest]:
        """Returns a hash of all fields of each row."""
        ...

    def take(self, places: Sequence[int]) -> TaskRows:
        """Returns the rows at these places."""
        ...


C = TypeVar("C", bound=TaskRows)


class AttemptState(Enum):
    NEW = "new"
    ENDS = "reading ends"
    REGISTER = "reading register"
    REGISTERING = "registering"
    CLAIMING = "claiming"
    JOINING = "joining"
    SCANNING = "scanning"
    WRITING = "writing"
    ANNOUNCING = "announcing"
    WAITING = "waiting for tasks"
    SENDING = "sending"
    CLOSING = "closing"
    VERIFYING = "verifying"
    DONE = "done"
    REFUSED = "refused"


class AttemptEvent(Enum):
    START = "start"
    ENDS_READ = "ends read"
    UNREGISTERED = "unregistered"
    REGISTER_STORED = "register stored"
    REGISTERED = "registered"
    CLAIM_WON = "claim won"
    CLAIM_WON_AGAIN = "claim won in another run"
    CLAIM_LOST = "claim lost"
    JOINED = "joined"
    SCANNED = "scanned"
    UNCHANGED = "unchanged"
    FOUND = "all rows found"
    ANNOUNCED = "announced"
    UNSURE = "rows to send"
    SURE = "tasks are the same"
    SEND = "send"
    BATCH_STORED = "batch stored"
    BATCH_REFUSED = "batch refused"
    SENT = "all sent"
    LAST = "last row"
    ALONE = "was alone"
    CONTENDED = "was not alone"
    VERIFIED = "verified"
    REFUSE = "refuse"


ATTEMPT_STATES: Final = StateTable(
    "sink's attempt", AttemptState, AttemptEvent,
    """
    state              event                     next state
    new                start                     reading ends
    reading ends       ends read                 reading register
    reading register   unregistered              registering
    reading register   registered                claiming
    reading register   refuse                    refused
    registering        register stored           reading register
    claiming           claim won                 writing
    claiming           claim won in another run  scanning
    claiming           claim lost                joining
    claiming           refuse                    refused
    joining            joined                    scanning
    joining            refuse                    refused
    scanning           scanned                   writing
    scanning           unchanged                 scanning
    scanning           refuse                    refused
    writing            all rows found            announcing
    writing            rows to send              waiting for tasks
    writing            send                      sending
    writing            last row                  closing
    writing            was not alone             verifying
    writing            verified                  done
    writing            refuse                    refused
    announcing         announced                 writing
    waiting for tasks  unchanged                 waiting for tasks
    waiting for tasks  tasks are the same        writing
    waiting for tasks  refuse                    refused
    sending            batch stored              sending
    sending            batch refused             scanning
    sending            all sent                  writing
    sending            refuse                    refused
    closing            was alone                 done
    closing            was not alone             verifying
    closing            refuse                    refused
    verifying          verified                  done
    verifying          refuse                    refused
    """,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Registered:
    """The register of a query and topic: the newest batch that was started, the run of the driver that started it,
    an offset below all its rows for each partition, and one below its records in the claims topic."""

    batch: int
    run: str
    starts: Mapping[int, int]
    claims: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim of a task's batch: `attempt` made it. Rows go only to the partitions of `starts`, whose offsets are
    below each row of the batch; those without a time of their own get `now_ms`.
    """

    attempt: str
    now_ms: int
    starts: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class FoundRows:
    """The rows of this identity that a search found in a partition: their hashes by sequence number, and the next
    sequence number."""

    next_sequence: int = 0
    rows: Mapping[int, Digest] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SentBatch:
    """A batch that was acknowledged: its offset, and the CRC of the data sent."""

    partition: int
    sequence: int
    count: int
    base_offset: int
    crc: int = 0


# -- effects


@dataclass(frozen=True, slots=True)
class ReadEnds:
    """Read the end of each partition, and of the query's in the claims topic; report `ends`."""


@dataclass(frozen=True, slots=True)
class ReadRegister:
    """Read the query's register of the topic; report `registered`."""


@dataclass(frozen=True, slots=True)
class RegisterBatch:
    """Store the register; report `stored_register`."""

    entry: Registered


@dataclass(frozen=True, slots=True)
class Append:
    """Append the claim, with this sequence number of the identity, to the claims topic, and read the first record that
    is stored there with it, from the offset `since` on; report `appended`. INVALID_PRODUCER_EPOCH is reported as
    `later_batch`.
    """

    sequence: int
    claim: Claim
    since: int


@dataclass(frozen=True, slots=True)
class Scan:
    """Search the partitions, from `claim.starts`, for this identity's rows; report `scanned`. `wait`: how often the
    search was repeated without a result, for the delay before it.
    """

    wait: int


@dataclass(frozen=True, slots=True)
class Announce:
    """Append to the claims topic the record that this run has found the task's stored rows; report `announced`."""


@dataclass(frozen=True, slots=True)
class ReadAnnounced:
    """Read which tasks of the batch have stored rows, and which of them were announced by this run, from the offset
    `claims` of the claims topic on; report `tasks`. `wait` as in `Scan`.
    """

    claims: int
    wait: int


@dataclass(frozen=True, slots=True)
class Send(Generic[C]):
    """Send these rows of each partition, in batches, from this sequence number on. Report with `batch_stored` each
    acknowledged batch (`read_back`: its records were found at their offset); with `batch_refused`, which ends the
    sending, a batch of another attempt and OUT_OF_ORDER_SEQUENCE_NUMBER; with `later_batch` INVALID_PRODUCER_EPOCH;
    with `sent` the end of the rows."""

    rows: Mapping[int, tuple[int, Sequence[C]]]
    read_back: bool


@dataclass(frozen=True, slots=True)
class Verify:
    """Compare the batches with the log; report `verified`."""

    batches: Sequence[SentBatch]


@dataclass(frozen=True, slots=True)
class Refuse:
    """The attempt must end with this error."""

    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """Each row is stored once."""


Effect: TypeAlias = (
    ReadEnds
    | ReadRegister
    | RegisterBatch
    | Append
    | Scan
    | Announce
    | ReadAnnounced
    | Send[C]
    | Verify
    | Refuse
    | Done
    | None
)
"""What the driver of the machine has to do next; None: it may `add` rows, `flush` and `finish`."""


class _Lane(Generic[C]):
    """The rows of one partition."""

    def __init__(self) -> None:
        self.next_sequence = 0
        self.left: Counter[Digest] = Counter()
        """Stored rows that were not yet found among the attempt's."""
        self.by_place: dict[int, Digest] = {}
        self.has_holes = False
        """True if compaction removed rows: stored rows are then recognised by their position."""
        self.place = 0
        self.pending: list[C] = []

    def scanned(self, found: FoundRows) -> bool:
        """Adds the stored rows that are new since the last search; returns True if there are some."""
        if found.next_sequence <= self.next_sequence:
            return False
        new = {place: row for place, row in found.rows.items() if place >= self.next_sequence}
        self.has_holes |= len(new) < found.next_sequence - self.next_sequence
        self.left.update(new.values())
        self.by_place.update(new)
        self.next_sequence = found.next_sequence
        return True

    @property
    def is_found(self) -> bool:
        return not self.left.total()

    def unstored(self, chunk: C) -> list[int] | None:
        """Returns the positions of the rows that are not stored; None if another row is stored at the same position."""
        first, self.place = self.place, self.place + len(chunk)
        if self.has_holes:
            return self._by_place(chunk, first)
        if self.is_found:
            return list(range(len(chunk)))
        places = []
        for place, row in enumerate(chunk.digests()):
            if self.left[row] > 0:
                self.left[row] -= 1
            else:
                places.append(place)
        return places

    def _by_place(self, chunk: C, first: int) -> list[int] | None:
        places = []
        for place, row in enumerate(chunk.digests()):
            if first + place >= self.next_sequence:
                places.append(place)
            elif first + place in self.by_place:
                stored = self.by_place.pop(first + place)
                if stored != row:
                    return None
                self.left[row] -= 1
        return places


class Attempt(Generic[C]):
    """See the module. `attempt` is unique, `run` names the run of the driver ("": unknown), `what` the task in errors;
    `now_ms` as in `Claim`. Not thread-safe.
    """

    def __init__(
        self, attempt: str, task: int, batch: int, run: str, what: str, *, now_ms: int = 0, patience: int = PATIENCE
    ) -> None:
        self._attempt = attempt
        self._now_ms = now_ms
        self._batch = batch
        self._run = run
        self._what = what
        self._task = task
        self._patience = patience
        self.state = ATTEMPT_STATES.initial
        self.effect: Effect[C] = None
        self._starts: Mapping[int, int] = {}
        self._is_first = True
        self._other_run = False
        self._claims = 0
        self._announced = False
        self._sure = False
        self._lanes: dict[int, _Lane[C]] = {}
        self._outstanding: dict[int, tuple[int, list[C]]] = {}
        self._batches: list[SentBatch] = []
        self._scans = 0
        self._last = False
        self.claim: Claim | None = None
        self.written = self.found = 0

    # -- the claim

    def start(self) -> None:
        self._go(AttemptEvent.START, ReadEnds())

    def ends(self, ends: Mapping[int, int], claims: int) -> None:
        self._starts, self._claims = dict(ends), claims
        self._go(AttemptEvent.ENDS_READ, ReadRegister())

    def registered(self, found: Registered | None) -> None:
        if found is not None and found.batch > self._batch:
            self.later_batch(found.batch)
        elif found is None or found.batch < self._batch:
            self._go(
                AttemptEvent.UNREGISTERED, RegisterBatch(Registered(self._batch, self._run, self._starts, self._claims))
            )
        else:
            self._other_run = found.run != self._run or not self._run
            self._starts, self._claims = found.starts, found.claims
            self._go(AttemptEvent.REGISTERED, self._append(0, self._starts))

    def _append(self, sequence: int, starts: Mapping[int, int]) -> Append:
        return Append(sequence, Claim(self._attempt, self._now_ms, starts), self._claims)

    def stored_register(self) -> None:
        """Reads the register again: another run may have stored its own."""
        self._go(AttemptEvent.REGISTER_STORED, ReadRegister())

    def appended(self, stored: Claim) -> None:
        """`stored` is the claim that has the sequence number of the `Append`."""
        mine = stored.attempt == self._attempt
        if self.state is AttemptState.CLAIMING:
            self.claim = stored
            self._lanes = {partition: _Lane() for partition in stored.starts}
            if mine and self._other_run:
                self._go(AttemptEvent.CLAIM_WON_AGAIN, Scan(0))
            elif mine:
                self._go(AttemptEvent.CLAIM_WON, None)
            else:
                self._is_first = False
                self._go(AttemptEvent.CLAIM_LOST, self._append(1, {}))
        elif self.state is AttemptState.JOINING:
            self._go(AttemptEvent.JOINED, Scan(0))
        elif mine:
            self._go(AttemptEvent.ALONE, Done())
        else:
            self._go(AttemptEvent.CONTENDED, Verify(tuple(self._batches)))

    def later_batch(self, batch: int | None = None) -> None:
        """Called when a later batch has the task's identity, or is registered."""
        later = "a later batch" if batch is None else f"batch {batch}"
        self._refuse(
            f"{self._what} is written, and so is {later}; was an older checkpoint restored? A new checkpointLocation "
            "writes all of it a second time"
        )

    # -- stored rows

    def scanned(self, found: Mapping[int, FoundRows]) -> None:
        changed = [lane.scanned(found.get(partition, FoundRows())) for partition, lane in self._lanes.items()]
        if self._scans and not any(changed):
            self._unchanged()
            return
        self._scans = 0
        for partition, lane in self._lanes.items():
            if lane.pending and not self._match_again(partition, lane):
                return
        self._go(AttemptEvent.SCANNED, None)
        self._proceed()

    def _unchanged(self) -> None:
        """Called after a refused batch while the rows with its sequence numbers are not visible yet."""
        if self._scans > SCANS_WITHOUT_PROGRESS:
            self._refuse(
                f"the broker has rows of {self._what} that are not in the log: they were deleted (retention, "
                "DeleteRecords), or are not on all replicas yet. Start the query again; if that ends here too, a new "
                "checkpointLocation writes the micro-batch a second time"
            )
            return
        self._scans += 1
        self._go(AttemptEvent.UNCHANGED, Scan(self._scans - 1))

    def _match_again(self, partition: int, lane: _Lane[C]) -> bool:
        chunks, lane.pending = lane.pending, []
        lane.place -= sum(map(len, chunks))
        return all(self._take(partition, lane, chunk) for chunk in chunks)

    def _take(self, partition: int, lane: _Lane[C], chunk: C) -> bool:
        """Keeps the rows of a chunk that are not stored; returns False if it is refused."""
        places = lane.unstored(chunk)
        if places is None:
            self._refuse(
                f"partition {partition}: a batch that is written again has its rows in another order, and compaction "
                "has removed some of the stored ones; sort the rows within their partitions"
            )
            return False
        self.found += len(chunk) - len(places)
        if places:
            kept = chunk if len(places) == len(chunk) else chunk.take(places)
            lane.pending.append(kept)  # type: ignore[arg-type]
        return True

    # -- rows

    def add(self, partition: int, chunk: C) -> None:
        """Adds rows, if `effect` is None."""
        if not self._take(partition, self._lanes[partition], chunk):
            return
        if self._other_run and not self._announced and self._all_found:
            self._go(AttemptEvent.FOUND, Announce())
        elif not self._all_found and self._pending > HELD_BYTES:
            self._refuse(
                f"an earlier attempt of {self._what} stored rows that are not among the first {HELD_BYTES >> 20} MiB "
                "of this one's: sort the rows within their partitions, so that each attempt has them in one order"
            )

    @property
    def _pending(self) -> int:
        return sum(chunk.nbytes for lane in self._lanes.values() for chunk in lane.pending)

    @property
    def _all_found(self) -> bool:
        return all(lane.is_found for lane in self._lanes.values())

    def flush(self) -> None:
        """Sends the rows, if all stored rows were found among them."""
        self._proceed()

    def finish(self) -> None:
        """Declares that there are no more rows."""
        self._last = True
        self._proceed()

    def _proceed(self) -> None:
        """Decides what is next in the state `WRITING`."""
        if not self._all_found:
            if self._last:
                left = sum(lane.left.total() for lane in self._lanes.values())
                self._refuse(
                    f"an earlier attempt of {self._what} stored {left} rows that this one does not have: the query's "
                    "rows, or the number of its tasks (minPartitions, shuffle partitions, repartition), are not those "
                    "of that attempt; restore them, and start the query again"
                )
            return
        if self._other_run and not self._announced:
            self._go(AttemptEvent.FOUND, Announce())
            return
        pending = {partition: lane for partition, lane in self._lanes.items() if lane.pending}
        if pending:
            if self._other_run and not self._sure:
                self._go(AttemptEvent.UNSURE, ReadAnnounced(self._claims, 0))
                return
            self._outstanding = {p: (lane.next_sequence, lane.pending) for p, lane in pending.items()}
            for lane in pending.values():
                lane.pending = []
            self._go(AttemptEvent.SEND, Send(dict(self._outstanding), not self._is_first))
        elif self._last and self._is_first:
            self._go(AttemptEvent.LAST, self._append(1, {}))
        elif self._last and self._batches:
            self._go(AttemptEvent.CONTENDED, Verify(tuple(self._batches)))
        elif self._last:
            self._go(AttemptEvent.VERIFIED, Done())

    def announced(self) -> None:
        self._announced = True
        self._go(AttemptEvent.ANNOUNCED, None)
        self._proceed()

    def tasks(self, stored: Set[int], announced: Set[int]) -> None:
        missing = sorted(stored - announced - {self._task})
        if not missing:
            self._sure = True
            self._scans = 0
            self._go(AttemptEvent.SURE, None)
            self._proceed()
        elif self._scans < self._patience:
            self._scans += 1
            self._go(AttemptEvent.UNCHANGED, ReadAnnounced(self._claims, self._scans))
        else:
            names = ", ".join(map(str, missing[:10]))
            self._refuse(
                f"{self._what}: an earlier run of the query stored rows in its tasks {names}, and those of this run "
                "have not found them among theirs: the number of tasks has changed (minPartitions, shuffle partitions, "
                "repartition), or Spark runs fewer tasks at once than then; restore it, and start the query again"
            )

    def batch_stored(self, batch: SentBatch) -> None:
        self._lanes[batch.partition].next_sequence = batch.sequence + batch.count
        self.written += batch.count
        if self._is_first:
            self._batches.append(batch)
        self._go(AttemptEvent.BATCH_STORED, self.effect)

    def batch_refused(self) -> None:
        """Another attempt used the sequence numbers: searches for its rows."""
        self._put_back()
        self._is_first = False
        self._scans = 1
        self._go(AttemptEvent.BATCH_REFUSED, Scan(0))

    def _put_back(self) -> None:
        for partition, (sequence, chunks) in self._outstanding.items():
            lane = self._lanes[partition]
            acknowledged = lane.next_sequence - sequence
            for chunk in chunks:
                sent = min(acknowledged, len(chunk))
                acknowledged -= sent
                if sent < len(chunk):
                    rest = chunk.take(range(sent, len(chunk))) if sent else chunk
                    lane.pending.append(rest)  # type: ignore[arg-type]
        self._outstanding = {}

    def sent(self) -> None:
        self._outstanding = {}
        self._go(AttemptEvent.SENT, None)
        self._proceed()

    def verified(self, same: bool) -> None:
        if same:
            self._go(AttemptEvent.VERIFIED, Done())
        else:
            self._refuse(
                f"another attempt of {self._what} stored other rows under this one's sequence numbers; the next "
                "attempt finds them"
            )

    def _refuse(self, reason: str) -> None:
        self._go(AttemptEvent.REFUSE, Refuse(reason))

    def _go(self, event: AttemptEvent, effect: Effect[C]) -> None:
        self.state = ATTEMPT_STATES.next(self.state, event)
        self.effect = effect
