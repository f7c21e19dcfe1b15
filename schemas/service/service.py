"""The registry beside a broker, or alone as `klamm registry`: its configuration and life cycle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from klamm.core.errors import PluginError
from klamm.core.extras import missing_package
from klamm.core.http_service import AsgiServer, CountedApp, HttpService
from klamm.core.interfaces.service import ServiceMetric

from .api import Answer, RegistryApi
from .config import RegistryConfig
from .topic import SchemaTopic

GRACE_S: Final = 5


class RegistryService:
    """Implements `klamm.core.interfaces.service.Service`. The caller owns `topic` and closes it."""

    def __init__(self, config: RegistryConfig, topic: SchemaTopic) -> None:
        self._config = config
        self._topic = topic
        self._requests: Counter[int] = Counter(dict.fromkeys((200, 404, 409, 422, 500, 503), 0))
        self._service: HttpService | None = None

    @property
    def url(self) -> str:
        return "" if self._service is None else self._service.url

    def start(self) -> None:
        """Raises `ConfigError` if the address cannot be used, `PluginError` without the extra `registry`."""
        address = self._config.address()
        try:
            from .app import RegistryApp

            api = RegistryApi(self._topic, self._config)
            app = RegistryApp(
                api, self._topic, max_body_bytes=self._config.max_request_body_size, identity=self._identity()
            )
            server = AsgiServer(CountedApp(app, self._requests), GRACE_S)
        except ImportError as error:
            line = missing_package("the schema registry", error, "klamm[registry]")
            if line is None:
                raise
            raise PluginError(line) from error
        service = HttpService("schema registry", address, "services.registry.listeners", server)
        service.start()
        self._topic.start()
        self._service = service

    def stop(self) -> None:
        if self._service is not None:
            self._service.stop()

    def _identity(self) -> dict[str, Callable[[], Answer]]:
        from klamm import __version__

        def scope() -> Answer:
            clusters = {"kafka-cluster": self._topic.cluster_id, "schema-registry-cluster": "schema-registry"}
            return {"scope": {"path": [], "clusters": clusters}, "id": ""}

        return {
            "/v1/metadata/id": scope,
            "/v1/metadata/version": lambda: {"version": __version__, "commitId": ""},
            "/v1/metadata/deployment": lambda: {"attributes": []},
        }

    def wait(self) -> None:
        """Returns once the server has ended."""
        if self._service is not None:
            self._service.wait()

    def health(self) -> str | None:
        found = None if self._service is None else self._service.health()
        return found or self._topic.problem()

    def metrics(self) -> Iterable[ServiceMetric]:
        with self._topic.store() as store:
            stray, subjects = store.stray_count, len(store.subjects())
        doc = "Answers of the schema registry, by HTTP status."
        return [
            *(
                ServiceMetric("registry_requests", doc, count, {"status": str(status)}, is_counter=True)
                for status, count in sorted(self._requests.copy().items())
            ),
            ServiceMetric(
                "registry_writes", "Writes to the topic of schemas.", self._topic.writes, {}, is_counter=True
            ),
            ServiceMetric(
                "registry_writes_overtaken", "Attempts of writes that came after another process's.",
                self._topic.overtaken, {}, is_counter=True,
            ),
            ServiceMetric("registry_subjects", "Subjects with a version that is not deleted.", subjects, {}),
            ServiceMetric("registry_stray_records", "Records of the topic that are no schema's.", stray, {}),
        ]  # fmt: skip
