"""What the cases of all coordinations do alike: open the coordinations that they make, and close them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from klamm.core.interfaces.coordination import Coordination

C = TypeVar("C", bound=Coordination)


class MadeCoordinations(ABC, Generic[C]):
    """`make` puts each coordination into `made`."""

    def __init__(self) -> None:
        self.made: list[C] = []

    @abstractmethod
    def make(self, session_timeout_ms: int = 10_000) -> C: ...

    def open(self, session_timeout_ms: int = 10_000) -> C:
        made = self.make(session_timeout_ms)
        made.start()
        return made

    def close(self) -> None:
        for made in self.made:
            made.close()
