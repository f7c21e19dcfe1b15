"""The configuration of `zookeeper`, with Kafka's names."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

from klamm.core.transport.address import Address
from klamm.plugin import CoordinationError

from ..tree_paths import check_path


class ZooKeeperConfig(BaseModel):
    """`zookeeper.connect`: `host:port,host:port/chroot`; the chroot is created if it does not exist.
    `zookeeper.connection.timeout.ms`: time that a call waits for a connection and a response; the session time-out if
    not set, as in Kafka."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, frozen=True)

    connect: str = Field(default="127.0.0.1:2181", alias="zookeeper.connect")
    session_timeout_ms: int = Field(default=6000, alias="zookeeper.session.timeout.ms", ge=500, le=600_000)
    connection_timeout_ms: int | None = Field(default=None, alias="zookeeper.connection.timeout.ms", ge=100, le=600_000)

    @field_validator("connect")
    @classmethod
    def _check_connect(cls, value: str) -> str:
        servers, slash, chroot = value.strip().partition("/")
        if "," in chroot:
            raise ValueError(_one_chroot(value))
        if chroot.split() != [chroot] and chroot:
            right = servers + slash + "".join(chroot.split())
            raise ValueError(f"the chroot {slash + chroot!r} has white space: write {right}")
        addresses = [_server(part.strip()) for part in servers.split(",")]
        try:
            check_path(slash + chroot or "/")
        except CoordinationError as error:
            raise ValueError(str(error)) from error
        return ",".join(addresses) + slash + chroot

    @property
    def hosts(self) -> str:
        """The servers, without the chroot."""
        return self.connect.partition("/")[0]

    @property
    def chroot(self) -> str:
        """The chroot; begins with `/`, or is empty."""
        path = self.connect.partition("/")[2]
        return f"/{path}" if path else ""

    @property
    def request_timeout_s(self) -> float:
        return (self.connection_timeout_ms or self.session_timeout_ms) / 1000


def _server(text: str) -> str:
    try:
        return str(Address.parse_server(text))
    except ValueError as error:
        raise ValueError(f"{error} in host:port,host:port/chroot") from error


def _one_chroot(value: str) -> str:
    """Returns the error message for a chroot that is not at the end, with the right form if each server has the same
    one."""
    parts = [part.strip().partition("/") for part in value.split(",") if part.strip()]
    chroots = {chroot for _, _, chroot in parts if chroot}
    form = f"{','.join(server for server, _, _ in parts)}/"
    meant = form + chroots.pop() if len(chroots) == 1 else f"{form}CHROOT"
    return f"the chroot follows the last server, once for all of them: write {meant}"
