"""The topic of schemas of one broker: its registry and its validator have one table, and one thread that follows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.core.client.factory import open_client

from .registry.last_ids import kept_ids
from .service.topic import REQUEST_S, SchemaTopic

if TYPE_CHECKING:
    from klamm.core.interfaces.service import BrokerContext


def shared_topic(context: BrokerContext, name: str) -> SchemaTopic:
    """Returns the topic of this name; the broker closes it."""

    def make() -> SchemaTopic:
        client = open_client(context, "schemas", request_timeout_s=REQUEST_S)
        return SchemaTopic(client, name, last_ids=kept_ids(context.coordination))

    return context.shared(f"schemas:{name}", make)
