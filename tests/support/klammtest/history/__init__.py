"""The history checker: what clients and observers recorded, what the replicas hold, and what of it cannot be right."""

from .checking import Anomaly, Verdict, check
from .events import Commit, History, Leadership, Outcome, Ownership, PartitionHistory, Poll, Send, Watermark
from .replicas import ReplicaLog, StoredBatch, read_replica

__all__ = [
    "Anomaly",
    "Commit",
    "History",
    "Leadership",
    "Outcome",
    "Ownership",
    "PartitionHistory",
    "Poll",
    "ReplicaLog",
    "Send",
    "StoredBatch",
    "Verdict",
    "Watermark",
    "check",
    "read_replica",
]
