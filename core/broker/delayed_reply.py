"""The reply to a request that was carried out and is answered once other brokers have done their part."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ..protocol.messages import Buffer, Entity

__all__ = ["DelayedReply", "Frame", "Outcome", "Reply", "reply_of_task"]

Reply = list[Buffer] | None
"""The pieces of a response frame; None: there is no response (acks=0)."""
Outcome = Entity | list[Buffer] | bytes | None
"""The response message, its encoded pieces, a whole frame as `bytes`, or None for no response."""
Frame = Callable[[Outcome, int], "Reply | Coroutine[Any, Any, Reply]"]
"""Makes the response frame of an outcome and counts the request, which began at the given time in ns."""


class DelayedReply:
    """A reply that becomes ready later. The connection handles the Produce requests behind it meanwhile, and sends
    the replies in the order of the requests.

    `answer` returns the outcome, and is called once the reply is ready. `frame` makes the response frame of it; the
    dispatcher sets it and `begun_ns`. Belongs to the event loop.
    """

    __slots__ = ("answer", "begun_ns", "frame", "is_ready", "on_ready")

    def __init__(self, answer: Callable[[], Outcome], *, is_ready: bool = False) -> None:
        self.answer = answer
        self.is_ready = is_ready
        self.frame: Frame | None = None
        self.begun_ns = 0
        self.on_ready: Callable[[], None] | None = None

    def ready(self) -> None:
        """Announces that `answer` can be called."""
        self.is_ready = True
        if self.on_ready is not None:
            self.on_ready()

    def take(self) -> Reply | Coroutine[Any, Any, Reply]:
        """Returns the response frame, or a coroutine of it. Raises what `answer` raises."""
        outcome = self.answer()
        if self.frame is not None:
            return self.frame(outcome, self.begun_ns)
        return outcome if isinstance(outcome, list) else None

    async def outcome(self) -> Outcome:
        """Waits until it is ready; returns the outcome. For callers that may wait."""
        if not self.is_ready:
            ready = asyncio.get_running_loop().create_future()
            self.on_ready = lambda: None if ready.done() else ready.set_result(None)
            await ready
        return self.answer()


def reply_of_task(task: asyncio.Task[Reply]) -> DelayedReply:
    """Returns the reply that a task makes."""
    reply = DelayedReply(task.result)

    def ended(_: asyncio.Task[Reply]) -> None:
        if not task.cancelled():
            task.exception()  # asyncio would log it if the connection has ended, so that nothing retrieves the reply
        reply.ready()

    task.add_done_callback(ended)
    return reply
