"""The table of APIs: a row for each, with the versions whose semantics are implemented (design D1) and its handler."""

from __future__ import annotations

from ...protocol.apis import ApiKey
from ...protocol.messages import Entity
from ..request import Request
from ..services import Services
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
from .api import Api
from .cluster import describe_cluster, elect_leaders, log_dirs, reassignments, unregister_broker
from .configs import client_quotas, list_config_resources
from .configs import describe_configs as configs
from .topics import create_topics, delete_topics, describe_topic_partitions

__all__ = ["APIS", "advertised"]


def _api_versions(services: Services, request: Request) -> Entity:
    return api_versions.api_versions(services, request, advertised())


# Upper ends: no KIP-848 in the group APIs, except for the topic ids of OffsetCommit and OffsetFetch 10. Produce is
# advertised from 0 on: librdkafka 2.0.2 sends gzip, snappy and lz4 uncompressed to a broker whose minimum is 3 (design,
# section 5).
APIS: dict[ApiKey, Api] = {
    api.key: api
    for api in (
        Api(ApiKey.PRODUCE, (3, 13), produce.produce, leased=True, advertised_from=0),
        Api(ApiKey.FETCH, (4, 18), fetch.fetch, leased=True),
        Api(ApiKey.LIST_OFFSETS, (1, 11), list_offsets.list_offsets, leased=True),
        Api(ApiKey.METADATA, (0, 13), metadata.metadata),
        Api(ApiKey.OFFSET_COMMIT, (2, 10), offsets.offset_commit, leased=True),
        Api(ApiKey.OFFSET_FETCH, (1, 10), offsets.offset_fetch, leased=True),
        Api(ApiKey.FIND_COORDINATOR, (0, 6), groups.find_coordinator),
        Api(ApiKey.JOIN_GROUP, (0, 9), groups.join_group, leased=True),
        Api(ApiKey.HEARTBEAT, (0, 4), groups.heartbeat, leased=True),
        Api(ApiKey.LEAVE_GROUP, (0, 5), groups.leave_group),
        Api(ApiKey.SYNC_GROUP, (0, 5), groups.sync_group, leased=True),
        Api(ApiKey.DESCRIBE_GROUPS, (0, 6), groups.describe_groups),
        Api(ApiKey.LIST_GROUPS, (0, 5), groups.list_groups),
        Api(ApiKey.API_VERSIONS, (0, 5), _api_versions, before_authentication=True),
        Api(ApiKey.CREATE_TOPICS, (2, 7), create_topics.create_topics),
        Api(ApiKey.DELETE_TOPICS, (1, 6), delete_topics.delete_topics),
        Api(ApiKey.DELETE_RECORDS, (0, 2), delete_records.delete_records, leased=True),
        Api(ApiKey.INIT_PRODUCER_ID, (0, 4), producer_ids.init_producer_id),
        Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, (2, 4), leader_epochs.offset_for_leader_epoch, leased=True),
        Api(ApiKey.DESCRIBE_ACLS, (1, 3), security.describe_acls),
        Api(ApiKey.CREATE_ACLS, (1, 3), security.create_acls),
        Api(ApiKey.DELETE_ACLS, (1, 3), security.delete_acls),
        Api(ApiKey.DESCRIBE_CONFIGS, (1, 4), configs.describe_configs),
        Api(ApiKey.ALTER_CONFIGS, (0, 2), configs.alter_configs),
        Api(ApiKey.ALTER_REPLICA_LOG_DIRS, (1, 2), log_dirs.alter_replica_log_dirs),
        Api(ApiKey.DESCRIBE_LOG_DIRS, (1, 5), log_dirs.describe_log_dirs),
        Api(ApiKey.CREATE_PARTITIONS, (0, 3), create_topics.create_partitions),
        Api(ApiKey.CREATE_DELEGATION_TOKEN, (1, 3), security.create_delegation_token),
        Api(ApiKey.RENEW_DELEGATION_TOKEN, (1, 2), security.renew_or_expire_delegation_token),
        Api(ApiKey.EXPIRE_DELEGATION_TOKEN, (1, 2), security.renew_or_expire_delegation_token),
        Api(ApiKey.DESCRIBE_DELEGATION_TOKEN, (1, 3), security.describe_delegation_token),
        Api(ApiKey.DELETE_GROUPS, (0, 2), groups.delete_groups, leased=True),
        Api(ApiKey.ELECT_LEADERS, (0, 2), elect_leaders.elect_leaders),
        Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, (0, 1), configs.incremental_alter_configs),
        Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, (0, 1), reassignments.alter_partition_reassignments),
        Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, (0, 0), reassignments.list_partition_reassignments),
        Api(ApiKey.OFFSET_DELETE, (0, 0), offsets.offset_delete, leased=True),
        Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, (0, 1), client_quotas.describe_client_quotas),
        Api(ApiKey.DESCRIBE_CLUSTER, (0, 2), describe_cluster.describe_cluster),
        Api(ApiKey.UNREGISTER_BROKER, (0, 0), unregister_broker.unregister_broker),
        Api(ApiKey.LIST_CONFIG_RESOURCES, (0, 1), list_config_resources.list_config_resources),
        Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, (0, 0), describe_topic_partitions.describe_topic_partitions),
    )
}


def advertised() -> dict[ApiKey, tuple[int, int]]:
    """Returns the lowest and the highest version of each API that ApiVersions answers."""
    return {api.key: api.advertised for api in APIS.values()}
