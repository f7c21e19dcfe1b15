"""The table of APIs and their handlers."""

from __future__ import annotations

from ...protocol.apis import ApiKey
from ..network.dispatch import Handler
from . import (
    api_versions,
    cluster,
    delete_records,
    fetch,
    groups,
    leader_epochs,
    list_offsets,
    metadata,
    offsets,
    produce,
    producer_ids,
    topics,
)
from .configs import describe_configs as configs

HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.PRODUCE: produce.produce,
    ApiKey.FETCH: fetch.fetch,
    ApiKey.LIST_OFFSETS: list_offsets.list_offsets,
    ApiKey.METADATA: metadata.metadata,
    ApiKey.OFFSET_COMMIT: offsets.offset_commit,
    ApiKey.OFFSET_FETCH: offsets.offset_fetch,
    ApiKey.FIND_COORDINATOR: groups.find_coordinator,
    ApiKey.JOIN_GROUP: groups.join_group,
    ApiKey.HEARTBEAT: groups.heartbeat,
    ApiKey.LEAVE_GROUP: groups.leave_group,
    ApiKey.SYNC_GROUP: groups.sync_group,
    ApiKey.DESCRIBE_GROUPS: groups.describe_groups,
    ApiKey.LIST_GROUPS: groups.list_groups,
    ApiKey.API_VERSIONS: api_versions.api_versions,
    ApiKey.CREATE_TOPICS: topics.create_topics,
    ApiKey.DELETE_TOPICS: topics.delete_topics,
    ApiKey.DELETE_RECORDS: delete_records.delete_records,
    ApiKey.INIT_PRODUCER_ID: producer_ids.init_producer_id,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: leader_epochs.offset_for_leader_epoch,
    ApiKey.DESCRIBE_CONFIGS: configs.describe_configs,
    ApiKey.ALTER_CONFIGS: configs.alter_configs,
    ApiKey.CREATE_PARTITIONS: topics.create_partitions,
    ApiKey.DELETE_GROUPS: groups.delete_groups,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.incremental_alter_configs,
    ApiKey.OFFSET_DELETE: offsets.offset_delete,
    ApiKey.DESCRIBE_CLUSTER: cluster.describe_cluster,
}
