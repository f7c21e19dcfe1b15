"""DeleteTopics: each topic of a request is deleted, or refused, separately.

The answer is sent when this broker no longer serves the deleted topics.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from uuid import UUID

from ....errors import BrokerError, ErrorCode, KlammError
from ....faults import fault_point
from ....interfaces.security.authorizer import AclOperation, ResourceType
from ....protocol.messages import Entity
from ...request import Request
from ...services import Services
from .answers import twice, wire_error

log = logging.getLogger(__name__)


async def delete_topics(services: Services, request: Request) -> Entity:
    """Deletes topics. The answer names a topic that was requested by id only to a client that may DESCRIBE it."""
    results = []
    deleted = False
    asked = _asked(services, request)
    counts: Counter[str | None] = Counter()
    for topic in asked:
        if topic.problem is None:
            counts[topic.name] += topic.times
    for topic in asked:
        code, text, topic_id = ErrorCode.none, None, topic.topic_id
        try:
            if not services.config.delete_topic_enable:
                raise BrokerError(ErrorCode.topic_deletion_disabled, "delete.topic.enable is false")
            if topic.problem is not None:
                raise topic.problem
            assert topic.name is not None
            if topic.times > 1:
                raise _repeated(topic.name, topic_id)
            services.access.check(request, AclOperation.DELETE, ResourceType.TOPIC, topic.name)
            if counts[topic.name] > 1:  # named by name and by id: reported only to a client that may delete it
                raise twice(ErrorCode.invalid_request, topic.name)
            topic_id = await services.workers.coordination(services.cluster.delete_topic, topic.name, topic_id)
            deleted = True
            log.info("deleted topic %s", topic.name)
            fault_point("topics.deleted")
        except KlammError as error:
            code, text = wire_error(error)
        if topic.hidden and topic.times == 1 and code not in (ErrorCode.none, ErrorCode.topic_deletion_disabled):
            text = f"the topic with the id {topic_id}: {code.name}"  # the error's own message may contain the name
        results.append(
            request.part(
                "DeletableTopicResult",
                name=None if topic.hidden else topic.name,
                topic_id=topic_id,
                error_code=code,
                error_message=text,
            )
        )
    await services.leadership.refresh()  # from now on no offset of theirs is committed at this broker
    if deleted:
        await services.deletions.finish()
    return request.respond(responses=tuple(results))


@dataclass(frozen=True)
class _Asked:
    """A topic that a DeleteTopics request names.

    `topic_id` if it is named by id; `problem`: why it cannot be deleted; `times`: how many times the request names
    it in this way; `hidden`: it is named by its id, and the answer must not contain its name.
    """

    name: str | None
    topic_id: UUID | None = None
    problem: BrokerError | None = None
    times: int = 1
    hidden: bool = False


def _asked(services: Services, request: Request) -> list[_Asked]:
    """Returns the requested topics, each once: by name up to version 5; by name or id (KIP-516) from version 6 on."""
    times: Counter[tuple[str | None, UUID | None]]
    if request.version < 6:
        times = Counter((name, None) for name in request.message.topic_names)
    else:
        times = Counter((topic.name, topic.topic_id) for topic in request.message.topics)
    return [_asked_for(services, request, name, topic_id, count) for (name, topic_id), count in times.items()]


def _asked_for(services: Services, request: Request, name: str | None, topic_id: UUID | None, times: int) -> _Asked:
    if (name is None) == (topic_id is None):
        problem = BrokerError(ErrorCode.invalid_request, "a topic is named either by its name or by its id")
        return _Asked(name, topic_id, problem)
    if topic_id is None:
        return _Asked(name, times=times)
    known = services.image.topic_by_id(topic_id)
    if known is None:
        unknown = BrokerError(ErrorCode.unknown_topic_id, f"no topic has the id {topic_id}")
        return _Asked(None, topic_id, _repeated(None, topic_id) if times > 1 else unknown)
    visible = times == 1 and services.access.allows(request, AclOperation.DESCRIBE, ResourceType.TOPIC, known.name)
    return _Asked(known.name, topic_id, times=times, hidden=not visible)


def _repeated(name: str | None, topic_id: UUID | None) -> BrokerError:
    """Returns the error for a name or id that occurs more than once. It is found before the access check, so it
    contains only what the request contains."""
    if topic_id is not None:
        return BrokerError(ErrorCode.invalid_request, "Duplicate topic id.")
    assert name is not None
    return twice(ErrorCode.invalid_request, name)
