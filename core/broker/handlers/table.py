"""The table of APIs and their handlers."""

from __future__ import annotations

from ...protocol.apis import ApiKey
from . import (
    api_versions,
    delete_records,
    fetch,
    groups,
    leader_epochs,
    list_offsets,
    metadata,
    offsets,
    produce,
    producer_ids,
    security,
)
from .cluster import describe_cluster, elect_leaders, log_dirs, reassignments, unregister_broker, update_features
from .configs import client_quotas, list_config_resources
from .configs import describe_configs as configs
from .dispatch import Handler
from .topics import create_topics, delete_topics, describe_topic_partitions

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
    ApiKey.CREATE_TOPICS: create_topics.create_topics,
    ApiKey.DELETE_TOPICS: delete_topics.delete_topics,
    ApiKey.DELETE_RECORDS: delete_records.delete_records,
    ApiKey.INIT_PRODUCER_ID: producer_ids.init_producer_id,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: leader_epochs.offset_for_leader_epoch,
    ApiKey.DESCRIBE_ACLS: security.describe_acls,
    ApiKey.CREATE_ACLS: security.create_acls,
    ApiKey.DELETE_ACLS: security.delete_acls,
    ApiKey.DESCRIBE_CONFIGS: configs.describe_configs,
    ApiKey.ALTER_CONFIGS: configs.alter_configs,
    ApiKey.ALTER_REPLICA_LOG_DIRS: log_dirs.alter_replica_log_dirs,
    ApiKey.DESCRIBE_LOG_DIRS: log_dirs.describe_log_dirs,
    ApiKey.CREATE_PARTITIONS: create_topics.create_partitions,
    ApiKey.CREATE_DELEGATION_TOKEN: security.create_delegation_token,
    ApiKey.RENEW_DELEGATION_TOKEN: security.renew_or_expire_delegation_token,
    ApiKey.EXPIRE_DELEGATION_TOKEN: security.renew_or_expire_delegation_token,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: security.describe_delegation_token,
    ApiKey.DELETE_GROUPS: groups.delete_groups,
    ApiKey.ELECT_LEADERS: elect_leaders.elect_leaders,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.incremental_alter_configs,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: reassignments.alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: reassignments.list_partition_reassignments,
    ApiKey.OFFSET_DELETE: offsets.offset_delete,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: client_quotas.describe_client_quotas,
    ApiKey.UPDATE_FEATURES: update_features.update_features,
    ApiKey.DESCRIBE_CLUSTER: describe_cluster.describe_cluster,
    ApiKey.UNREGISTER_BROKER: unregister_broker.unregister_broker,
    ApiKey.LIST_CONFIG_RESOURCES: list_config_resources.list_config_resources,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions.describe_topic_partitions,
}
