"""Requests to a schema registry by its REST API, at the first of several addresses that answers."""

from __future__ import annotations

import json
import random
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

import urllib3
from urllib3.exceptions import HTTPError, LocationParseError

from klamm.core.errors import ConfigError, RegistryUnavailableError, SchemaError

from ..options import PREFIX, USER_INFO, RegistryAccess

MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_AGAIN: Final = frozenset({408, 429, 500, 502, 503, 504})
"""Confluent's clients retry these."""
_FIRST_WAIT_S: Final = 0.05
_LONGEST_WAIT_S: Final = 2.0
_SHOWN: Final = 2000
MAX_ANSWER: Final = 64 * 1024 * 1024
"""Bytes of an answer."""
_PIECE: Final = 64 * 1024


class NotRegisteredError(SchemaError):
    """The registry has no such subject, version or schema."""


class RestClient:
    """Thread-safe; `close` when done. An address that cannot be reached, or answers that it cannot serve now, is passed
    over: the next is asked, until `timeout_s` is over."""

    def __init__(
        self,
        access: RegistryAccess,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._access = access
        self._urls = access.schema_registry_url
        self._timeout_s = timeout_s
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._chosen = 0
        timeout = urllib3.Timeout(access.schema_registry_request_timeout_ms / 1000)
        secure = _ssl_context(access) if any(url.startswith("https:") for url in self._urls) else None
        self._pool = urllib3.PoolManager(
            headers=_headers(access), timeout=timeout, retries=False, maxsize=4, ssl_context=secure
        )

    def __reduce__(self) -> tuple[type[RestClient], tuple[RegistryAccess, float]]:
        return RestClient, (self._access, self._timeout_s)

    def close(self) -> None:
        self._pool.clear()

    def get(self, *path: str | int, **query: str) -> Any:
        """Returns the answer. Raises `NotRegisteredError`; `SchemaError` for what is refused;
        `RegistryUnavailableError` if no address answers, or the user is refused."""
        return self._call("GET", _path(path, query), None)

    def get_known(self, *path: str | int, **query: str) -> Any:
        """Like `get`, for an entry that the registry is known to have: an address without it is behind, and is passed
        over."""
        return self._call("GET", _path(path, query), None, known=True)

    def post(self, body: Mapping[str, Any], *path: str | int, **query: str) -> Any:
        """Like `get`."""
        return self._call("POST", _path(path, query), body)

    def put(self, body: Mapping[str, Any], *path: str | int) -> Any:
        """Like `get`."""
        return self._call("PUT", _path(path, {}), body)

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None, *, known: bool = False) -> Any:
        data = None if body is None else json.dumps(body).encode()
        end = self._clock() + self._timeout_s
        wait = _FIRST_WAIT_S
        while True:
            problems = []
            for _ in self._urls:
                url = self._urls[self._chosen % len(self._urls)]
                try:
                    return self._once(method, url, path, data)
                except (_NoAnswerError, NotRegisteredError) as error:
                    if isinstance(error, NotRegisteredError) and not known:
                        raise
                    problems.append(f"{url}: {error}")
                    with self._lock:
                        self._chosen += 1
            left = end - self._clock()
            if left <= 0:
                seconds = f"{self._timeout_s:g} s"
                raise RegistryUnavailableError(f"no schema registry answers for {seconds}: {'; '.join(problems)}")
            self._sleep(min(wait * random.uniform(0.5, 1.5), left))
            wait = min(wait * 2, _LONGEST_WAIT_S)

    def _once(self, method: str, url: str, path: str, data: bytes | None) -> Any:
        headers = dict(self._pool.headers)
        if data is not None:
            headers["Content-Type"] = MEDIA_TYPE
        try:
            response = self._pool.request(
                method, url + path, body=data, headers=headers, redirect=False, preload_content=False
            )
            received = self._received(response)
        except LocationParseError as error:
            raise ConfigError(f"{PREFIX}url: {url}: {error}") from error
        except HTTPError as error:
            if isinstance(error.__cause__ or error.__context__, ssl.SSLCertVerificationError):
                raise RegistryUnavailableError(f"schema registry {url}: {_reason(error)}") from error
            raise _NoAnswerError(_reason(error)) from error
        if response.status in _AGAIN:
            raise _NoAnswerError(f"status {response.status}: {_message(received)[1]}")
        return _answer(response.status, received, url, f"{method} {path}")

    def _received(self, response: urllib3.BaseHTTPResponse) -> bytes:
        """Returns the body, which urllib3 bounds neither in size nor, if it arrives piece by piece, in time."""
        most_s = self._access.schema_registry_request_timeout_ms / 1000
        end, data, whole = self._clock() + most_s, bytearray(), False
        try:
            while piece := response.read1(_PIECE):
                data += piece
                if len(data) > MAX_ANSWER:
                    raise _NoAnswerError(f"the answer is longer than {MAX_ANSWER} bytes")
                if self._clock() > end:
                    raise _NoAnswerError(f"the answer did not arrive within {most_s:g} s")
            whole = True
        finally:
            if not whole:  # the rest of it would be read as the next answer
                response.close()
            response.release_conn()
        return bytes(data)


class _NoAnswerError(Exception):
    """This address cannot serve the request now."""


def _answer(status: int, data: bytes, url: str, request: str) -> Any:
    if 200 <= status < 300:
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise _NoAnswerError(f"{request}: the answer is not JSON: {data[:80]!r}") from None
    code, message = _message(data)
    where = f"schema registry {url}"
    if status in (401, 403):
        hint = "" if status == 403 else f" ({PREFIX}{USER_INFO} names the user)"
        raise RegistryUnavailableError(f"{where}: {request}: status {status}: {message}{hint}")
    named = str(status) if code == status else f"{status}, error code {code}"
    if status == 404 and code is not None:
        raise NotRegisteredError(f"{where}: {message} (status {named})")
    if status in (409, 422):
        raise SchemaError(f"{where}: {message} (status {named})")
    raise RegistryUnavailableError(f"{where}: {request}: status {named}: {message}")


def _message(data: bytes) -> tuple[int | None, str]:
    """Returns the code and the text of an error's answer, which may come from a proxy."""
    try:
        found = json.loads(data)
        return found.get("error_code"), " ".join(str(found["message"]).split())[:_SHOWN]
    except (ValueError, KeyError, AttributeError, RecursionError):
        return None, " ".join(data.decode(errors="replace").split())[:80] or "no reason is given"


def _reason(error: Exception) -> str:
    """Returns urllib3's reason in one line, without the name of the object that failed."""
    reason = error.args[-1] if error.args else error
    return " ".join(str(reason).rpartition(">: ")[2].split())


def _path(parts: tuple[str | int, ...], query: Mapping[str, str]) -> str:
    path = "".join(f"/{quote(str(part), safe='')}" for part in parts)
    return f"{path}?{urlencode(query)}" if query else path


def _headers(access: RegistryAccess) -> dict[str, str]:
    headers = {"Accept": f"{MEDIA_TYPE}, application/json", "User-Agent": "klamm"}
    user, token = access.schema_registry_basic_auth_user_info, access.schema_registry_bearer_auth_token
    if user is not None:
        headers |= urllib3.make_headers(basic_auth=user)
    elif token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return headers


def _ssl_context(access: RegistryAccess) -> ssl.SSLContext:
    certificate = access.schema_registry_ssl_certificate_location
    name = PREFIX + "ssl.ca.location"
    try:
        made = ssl.create_default_context(cafile=access.schema_registry_ssl_ca_location)
        if certificate is not None:
            name = PREFIX + "ssl.certificate.location"
            made.load_cert_chain(
                certificate, access.schema_registry_ssl_key_location, access.schema_registry_ssl_key_password or ""
            )
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{name}: cannot be read: {error}") from error
    return made
