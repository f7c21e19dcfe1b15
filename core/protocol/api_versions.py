"""ApiVersions 5, which kio does not have yet: the request also names the broker that the client expects (KIP-1242).
The response is that of version 4."""

# Annotations are evaluated: kio reads the types of the fields.
from dataclasses import dataclass, field
from typing import ClassVar

from kio.schema.request_header.v2.header import RequestHeader
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32

VERSION = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsRequest:
    """The request, in the form of kio's generated classes."""

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(VERSION)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(18)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    client_software_name: str = field(metadata={"kafka_type": "string"})
    client_software_version: str = field(metadata={"kafka_type": "string"})
    cluster_id: str | None = field(metadata={"kafka_type": "string"}, default=None)
    """The cluster that the client expects; null if it does not know."""
    node_id: i32 = field(metadata={"kafka_type": "int32"}, default=i32(-1))
    """The broker that the client expects; -1 if it does not know."""
