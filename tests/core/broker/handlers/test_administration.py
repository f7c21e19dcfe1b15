"""What Kafka's tools ask a broker for that keeps no ACLs, quotas or tokens and has one log directory.

Over every version, with the answers of a Kafka 4.4 (bench/compare_protocol.py shows both)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from klamm.core.errors import ErrorCode
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.produce.conditional import FEATURE
from klammtest.apis import SERVED
from klammtest.broker import RunningBroker
from klammtest.requests import new_topic
from klammtest.wire import WireClient, part

SOON = timedelta(seconds=20)
ANYTHING = (ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY)
RULE = (
    ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, "User:a", "*", AclOperation.READ, AclPermissionType.ALLOW,
)  # fmt: skip


def over(api: ApiKey) -> Any:
    return pytest.mark.parametrize("version", range(SERVED[api][0], SERVED[api][1] + 1))


def test_acls_are_disabled_as_in_a_kafka_without_an_authorizer(broker: RunningBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    asked = [*admin.create_acls([AclBinding(*RULE)]).values()]  # librdkafka takes no notice of DescribeAcls's error
    asked += admin.delete_acls([AclBindingFilter(*ANYTHING)]).values()
    for future in asked:
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            future.result(60)
        assert refused.value.args[0].code() == confluent_kafka.KafkaError.SECURITY_DISABLED
        assert "No Authorizer" in refused.value.args[0].str()


@over(ApiKey.DESCRIBE_ACLS)
def test_acls_over_every_version(wire: WireClient, version: int) -> None:
    filters = {
        "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
        "host_filter": None, "operation": 1, "permission_type": 1,
    }  # fmt: skip
    assert wire.call(ApiKey.DESCRIBE_ACLS, version, **filters).error_code is ErrorCode.security_disabled
    each = part(ApiKey.DELETE_ACLS, version, "DeleteAclsFilter", **filters)
    rows = wire.call(ApiKey.DELETE_ACLS, version, filters=(each, each)).filter_results
    assert [row.error_code for row in rows] == [ErrorCode.security_disabled] * 2
    each = part(
        ApiKey.CREATE_ACLS, version, "AclCreation", resource_type=2, resource_name="t", resource_pattern_type=3,
        principal="User:a", host="*", operation=3, permission_type=3,
    )  # fmt: skip
    rows = wire.call(ApiKey.CREATE_ACLS, version, creations=(each, each)).results
    assert [row.error_code for row in rows] == [ErrorCode.security_disabled] * 2


TOKENS: dict[ApiKey, dict[str, Any]] = {
    ApiKey.CREATE_DELEGATION_TOKEN: {
        "renewers": (), "max_lifetime": SOON, "owner_principal_type": None, "owner_principal_name": None,
    },
    ApiKey.RENEW_DELEGATION_TOKEN: {"hmac": b"h", "renew_period": SOON},
    ApiKey.EXPIRE_DELEGATION_TOKEN: {"hmac": b"h", "expiry_time_period": SOON},
    ApiKey.DESCRIBE_DELEGATION_TOKEN: {"owners": None},
}  # fmt: skip


@pytest.mark.parametrize("api", TOKENS, ids=lambda api: api.name)
def test_delegation_tokens_are_disabled(wire: WireClient, api: ApiKey) -> None:
    """The first field of each answer: kio does not read Kafka's -1 for no time, which is a time before 1970."""
    low, high = SERVED[api]
    for version in range(low, high + 1):
        wire.send(api, version, **TOKENS[api])
        frame = wire.receive_frame()
        assert frame is not None
        start = 4 if version == 1 else 5
        assert frame[start : start + 2] == ErrorCode.delegation_token_auth_disabled.value.to_bytes(2, "big")


@over(ApiKey.DESCRIBE_CLIENT_QUOTAS)
def test_there_are_no_quotas(wire: WireClient, version: int) -> None:
    api = ApiKey.DESCRIBE_CLIENT_QUOTAS
    user = part(api, version, "ComponentData", entity_type="user", match_type=2, match=None)
    for components in ((), (user,)):
        answer = wire.call(api, version, components=components, strict=False)
        assert (answer.error_code, answer.entries) == (ErrorCode.none, ())


def test_resources_that_have_configs(wire: WireClient) -> None:
    api, topic = ApiKey.LIST_CONFIG_RESOURCES, new_topic(wire)

    def listed(*kinds: int, version: int = 1) -> tuple[ErrorCode, list[tuple[int, str]]]:
        answer = wire.call(api, version, resource_types=kinds)
        return answer.error_code, [(getattr(r, "resource_type", 16), r.resource_name) for r in answer.config_resources]

    assert listed(version=0) == (ErrorCode.none, [])
    assert listed(4, 8) == (ErrorCode.none, [(4, "0"), (8, "0")])
    assert (2, topic) in listed(2)[1]
    assert listed(16, 32) == (ErrorCode.none, [])
    assert {kind for kind, _ in listed()[1]} == {2, 4, 8}
    assert listed(2, 3) == (ErrorCode.unsupported_version, [])


@over(ApiKey.ALTER_REPLICA_LOG_DIRS)
def test_there_is_one_log_directory(broker: RunningBroker, wire: WireClient, version: int) -> None:
    api, topic = ApiKey.ALTER_REPLICA_LOG_DIRS, new_topic(wire)
    moved = part(api, version, "AlterReplicaLogDirTopic", name=topic, partitions=(0, 7))

    def altered(path: str) -> list[ErrorCode]:
        asked = part(api, version, "AlterReplicaLogDir", path=path, topics=(moved,))
        (result,) = wire.call(api, version, dirs=(asked,)).results
        return [row.error_code for row in result.partitions]

    assert altered("/nowhere") == [ErrorCode.log_dir_not_found] * 2
    assert altered(str(broker.log_dir)) == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]


@over(ApiKey.API_VERSIONS)
def test_conditional_appends_are_a_supported_feature(wire: WireClient, version: int) -> None:
    answer = wire.call(ApiKey.API_VERSIONS, version, client_software_name="test", client_software_version="1")
    found = getattr(answer, "supported_features", ())
    assert [(each.name, each.min_version, each.max_version) for each in found] == [(FEATURE, 1, 1)] * (version >= 3)
