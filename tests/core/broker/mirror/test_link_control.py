"""What the controller asks the source for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from klamm.core.broker.mirror.link_control import groups_of
from klamm.core.client.errors import ConnectionFailedError
from klamm.core.errors import ErrorCode


class Source:
    """`ClusterClient` of three brokers, of which the first does not answer and the second is not allowed to."""

    def metadata(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(nodes={1: None, 2: None, 3: None})

    def call(self, _: Any, node: int, **__: Any) -> Any:
        if node == 1:
            raise ConnectionFailedError("refused")
        code = ErrorCode.group_authorization_failed if node == 2 else ErrorCode.none
        return SimpleNamespace(error_code=code, groups=[SimpleNamespace(group_id="load")] if node == 3 else [])


def test_a_broker_of_the_source_that_does_not_list_its_groups_stops_those_of_no_other() -> None:
    """As one that was just lost: before a fail-over the newest offsets of the other groups are copied once more."""
    source: Any = Source()
    found, problem = groups_of(source)
    assert found == {"load"}
    assert "the groups of broker 2 of the source are not copied: BrokerError: GROUP_AUTHORIZATION_FAILED" in problem
