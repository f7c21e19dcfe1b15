"""The configuration of `etcd`."""

from __future__ import annotations

import re
from typing import Self
from urllib.parse import urlsplit

from pydantic import SecretStr, field_validator, model_validator

from klamm.plugin import ConfigPath, CoordinationError, Int, Names, Section, key, wrong_key

from ..tree_paths import check_path


class EtcdConfig(Section):
    """The keys of `coordination` with `plugin: etcd`."""

    etcd_endpoints: Names = key(
        ("http://127.0.0.1:2379",), "URLs of the cluster's members, http://host:port or https://host:port."
    )
    etcd_prefix: str = key("/klamm", "The beginning of all keys; two clusters of Klamm on one etcd have two.")
    etcd_session_timeout_ms: Int = key(
        6000, "Silence after which a process counts as dead. etcd counts in whole seconds.", ge=1000, le=600_000
    )
    etcd_request_timeout_ms: Int | None = key(
        None, "Time that one call waits; the session time-out if not set.", ge=100, le=600_000
    )
    etcd_username: str | None = key(None, "The user, where the cluster has authentication.")
    etcd_password: SecretStr | None = key(None, "The user's password.")
    etcd_ssl_ca: ConfigPath | None = key(None, "CA certificates (PEM) for https; the system's if not set.")
    etcd_ssl_certificate: ConfigPath | None = key(
        None, "The client's certificate (PEM), where the cluster asks for one."
    )
    etcd_ssl_key: ConfigPath | None = key(None, "The private key (PEM) of etcd.ssl.certificate.")

    @field_validator("etcd_endpoints")
    @classmethod
    def _check_endpoints(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("no endpoint; expected http://host:port,...")
        return tuple(_endpoint(url) for url in value)

    @field_validator("etcd_prefix")
    @classmethod
    def _check_prefix(cls, value: str) -> str:
        try:
            check_path(value)
        except CoordinationError as error:
            raise ValueError(str(error)) from error
        if value == "/":
            raise ValueError("'/' is no prefix; expected a path such as /klamm")
        return value

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        if (self.etcd_username is None) != (self.etcd_password is None):
            raise wrong_key("etcd.username", "etcd.username and etcd.password are given together")
        if self.etcd_ssl_key is not None and self.etcd_ssl_certificate is None:
            raise wrong_key("etcd.ssl.key", "etcd.ssl.key needs etcd.ssl.certificate")
        for name in ("etcd.ssl.ca", "etcd.ssl.certificate", "etcd.ssl.key"):
            path = getattr(self, name.replace(".", "_"))
            if path is None:
                continue
            if not any(url.startswith("https:") for url in self.etcd_endpoints):
                raise wrong_key(name, "has no effect: no URL in etcd.endpoints begins with https://")
            if not path.is_file():
                raise wrong_key(name, f"{path} is not a file")
        return self

    @property
    def session_timeout_s(self) -> float:
        return self.etcd_session_timeout_ms / 1000

    @property
    def request_timeout_s(self) -> float:
        return (self.etcd_request_timeout_ms or self.etcd_session_timeout_ms) / 1000

    @property
    def addresses(self) -> str:
        """The endpoints, for messages."""
        return ",".join(self.etcd_endpoints)


def _endpoint(url: str) -> str:
    wrong = ValueError(f"{url!r} is not an endpoint; expected http://host:port or https://host:port")
    url = url.strip()
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise wrong from None
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or not port
        or set(url) & set("?#@ \t")
        or not re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):\d+", parts.netloc)
    ):
        raise wrong
    if parts.path not in ("", "/"):
        raise ValueError(f"{wrong}; the beginning of all keys is etcd.prefix: {parts.path}")
    return url.rstrip("/")
