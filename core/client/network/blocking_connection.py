"""A blocking byte stream under the connection's state machine: sends one request and waits for its answer, within a
time limit.

Foreign errors (OSError) are translated here: a caller sees `ConnectionFailedError` or `RequestTimeoutError`, which name
the address. After either the connection is closed, since a late answer would be taken for the next request's.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ...errors import ProtocolError
from ...protocol.apis import ApiKey
from ...transport.address import Address
from ...transport.interface import Dial
from ...transport.plaintext_stream import dial_plaintext
from ..errors import ConnectionFailedError, RequestTimeoutError
from .connection import Build, ClientConnection, ClientConnectionState, Decode, Response


@dataclass(frozen=True, slots=True)
class AnswerWatch:
    """`check` is called each time nothing has arrived for `every_s` seconds; an error that it raises ends the call
    and closes the connection."""

    every_s: float
    check: Callable[[], None]


class BlockingConnection:
    """One byte stream to one broker, negotiated. Not thread-safe: the pool lends it to one caller at a time."""

    def __init__(
        self,
        address: Address,
        protocol: ClientConnection,
        *,
        timeout_s: float,
        dial: Dial = dial_plaintext,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connects and negotiates within `timeout_s`."""
        self.address = address
        self._protocol = protocol
        self._clock = clock
        try:
            self._stream = dial(address, timeout_s)
        except OSError as error:
            raise ConnectionFailedError(f"cannot connect to {address}: {reason(error)}") from error
        deadline = clock() + timeout_s
        protocol.open()
        with self._closing_on_error("ApiVersions"):
            self._write(deadline)
            while protocol.state is not ClientConnectionState.READY:
                self._read(deadline)
                self._write(deadline)

    def call(
        self,
        api: ApiKey,
        build: Build,
        timeout_s: float,
        *,
        answered: bool = True,
        max_version: int | None = None,
        feature: str | None = None,
        watch: AnswerWatch | None = None,
        decode: Decode | None = None,
    ) -> Any:
        """Returns the response's message, or the result of `decode`; None if `answered` is False (Produce with
        acks=0)."""
        deadline = self._clock() + timeout_s
        with self._closing_on_error(api.name):
            self._protocol.send(api, build, answered=answered, max_version=max_version, feature=feature, decode=decode)
            self._write(deadline)
            while answered:
                for response in self._read_watched(deadline, watch):
                    return response.message
        return None

    @property
    def usable(self) -> bool:
        """Returns False if the broker has closed the connection since the last call, or has sent unrequested bytes."""
        return self._protocol.state is ClientConnectionState.READY and self._stream.is_quiet()

    def close(self) -> None:
        """Closes the connection; a call that waits on another thread ends with `ConnectionFailedError`."""
        self._protocol.close()
        self._stream.close()

    @contextlib.contextmanager
    def _closing_on_error(self, what: str) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            self.close()
            raise RequestTimeoutError(f"no answer to {what} from {self.address} in time") from error
        except OSError as error:
            self.close()
            raise ConnectionFailedError(f"the connection to {self.address} broke: {reason(error)}") from error
        except ProtocolError as error:
            self.close()
            raise ProtocolError(f"{self.address}: {error}") from error
        except BaseException:  # Ctrl-C during the wait
            self.close()
            raise

    def _write(self, deadline: float) -> None:
        output = self._protocol.take_output()
        if output:
            self._stream.write_all(output, self._left_s(deadline))

    def _read_watched(self, deadline: float, watch: AnswerWatch | None) -> list[Response]:
        while watch is not None and (pause := self._clock() + watch.every_s) < deadline:
            try:
                return self._read(pause)
            except TimeoutError:
                watch.check()
        return self._read(deadline)

    def _read(self, deadline: float) -> list[Response]:
        count = self._stream.read_into(self._protocol.get_buffer(), self._left_s(deadline))
        if count == 0:
            raise ConnectionResetError("the broker closed it")
        return self._protocol.received(count)

    def _left_s(self, deadline: float) -> float:
        left = deadline - self._clock()
        if left <= 0:
            raise TimeoutError
        return left


def reason(error: OSError) -> str:
    """Returns the operating system's message, without number or class."""
    return (error.strerror or str(error) or type(error).__name__).lower()
