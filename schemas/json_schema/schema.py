"""A JSON Schema of the registry: drafts 4, 6, 7, 2019-09 and 2020-12 (7 where `$schema` names none of them, as in
Confluent's registry)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from typing import Any, Final
from urllib.parse import urljoin

from jsonschema import exceptions, validators
from jsonschema.protocols import Validator
from jsonschema_specifications import REGISTRY
from referencing import Registry, Resource, Specification
from referencing.jsonschema import SchemaRegistry, specification_with

from klamm.core.errors import SchemaError

from .nodes import Builder, SchemaNode
from .patterns import KEYWORDS
from .text import MAX_DEPTH, dump, frozen, load

DRAFT_7: Final = "http://json-schema.org/draft-07/schema"
DRAFTS: Final[Mapping[str, str]] = {
    "json-schema.org/draft-04/schema": "http://json-schema.org/draft-04/schema",
    "json-schema.org/schema": "http://json-schema.org/draft-04/schema",
    "json-schema.org/draft-06/schema": "http://json-schema.org/draft-06/schema",
    "json-schema.org/draft-07/schema": DRAFT_7,
    "json-schema.org/draft/2019-09/schema": "https://json-schema.org/draft/2019-09/schema",
    "json-schema.org/draft/2020-12/schema": "https://json-schema.org/draft/2020-12/schema",
}
"""The draft of each `$schema`, without its scheme and `#`."""


@dataclass(frozen=True, eq=False)
class JsonSchema:
    """`text` is as it was given, `references` the texts that its `$ref` may name."""

    text: str
    references: Mapping[str, str]

    @cached_property
    def canonical(self) -> str:
        """The compact text, keys in the order given."""
        return dump(self.document)

    @cached_property
    def normalized(self) -> str:
        """The canonical text with the keys of every object sorted."""
        return dump(self.document, sort_keys=True)

    @cached_property
    def fields(self) -> frozenset[str]:
        """Names of the properties at the top."""
        properties = self.document.get("properties") if isinstance(self.document, dict) else None
        return frozenset(properties if isinstance(properties, dict) else ())

    @cached_property
    def root(self) -> SchemaNode:
        """The node that is compared. Raises `SchemaError` if a `$ref` leads nowhere."""
        draft = draft_of(self.document)
        documents = {name: load(text) for name, text in self.references.items()}
        try:
            specification = specification_with(draft)
            registry = registry_of(self.document, documents, specification)
            return Builder(registry, specification, modern="/draft/" in draft).build(self.document)
        except ValueError as error:  # a URI that is none
            raise SchemaError(f"not a JSON Schema: {str(error)[:200]}") from error
        except (AttributeError, TypeError) as error:  # only in a text that was never checked
            raise SchemaError("not a JSON Schema: a keyword has a value of the wrong type") from error

    @cached_property
    def validator(self) -> Validator:
        """Checks values. Retrieves nothing: a `$ref` that leads nowhere raises an error when it is needed."""
        return self.validator_of(draft_class)

    def validator_of(self, class_of: Callable[[str], type[Validator]]) -> Validator:
        """Returns a validator of the class of the draft."""
        draft = draft_of(self.document)
        document = without_draft(self.document)
        documents = {name: without_draft(load(text)) for name, text in self.references.items()}
        registry = registry_of(document, documents, specification_with(draft))
        return class_of(draft)(document, registry=registry)

    @cached_property
    def document(self) -> Any:
        """The JSON value."""
        return load(self.text)


def parse(text: str, references: Mapping[str, str] | None = None, *, new: bool = True) -> JsonSchema:
    """Parses a schema. `references` are texts by the name that a `$ref` uses. `new`: checks the schema; a text that the
    topic has already need only be JSON.

    Raises `SchemaError` in one line if the text is no JSON, no schema of its draft, beyond the limits (`text.MAX_TEXT`
    and others), or has a `$ref` that neither it nor `references` resolve.
    """
    schema = JsonSchema(text, dict(references or {}))
    document = schema.document
    if not new:
        return schema
    if not isinstance(document, dict | bool):
        raise SchemaError(f"not a JSON Schema: the root is {_kind(document)}, not an object or a boolean")
    try:
        schema.canonical.encode()
    except UnicodeEncodeError:
        raise SchemaError("not JSON: half of a surrogate pair") from None
    _check(document)
    schema.root  # noqa: B018 - resolves every `$ref`
    return schema


def _kind(value: Any) -> str:
    names = {list: "an array", str: "a string", type(None): "null"}
    return names.get(type(value), "a number")


def draft_of(document: Any) -> str:
    """Returns the URI of the draft that a document names."""
    given = document.get("$schema") if isinstance(document, dict) else None
    name = given.removesuffix("#").partition("://")[2] if isinstance(given, str) else ""
    return DRAFTS.get(name, DRAFT_7)


def registry_of(document: Any, documents: Mapping[str, Any], specification: Specification[Any]) -> SchemaRegistry:
    """Returns a registry with the root as "", and the references by their names and by their URIs relative to each
    document's. It retrieves nothing."""
    root, *others = (
        Resource.from_contents(part, default_specification=specification) for part in (document, *documents.values())
    )
    named = dict(zip(documents, others, strict=True))
    bases = {base for resource in (root, *others) if (base := resource.id())}
    known = {urljoin(base, name): resource for base in bases for name, resource in named.items()}
    known |= {f"./{name}": resource for name, resource in named.items()} | named
    registry: SchemaRegistry = REGISTRY.with_resources([*known.items(), ("", root)])
    if own := root.id():
        registry = registry.with_resource(own, root)
    return registry.crawl()


def without_draft(document: Any) -> Any:
    """Returns the schema without `$schema`: there a validator would change to the draft's own class, and lose its
    additional keywords."""
    if isinstance(document, list):
        return [without_draft(part) for part in document]
    if not isinstance(document, dict):
        return document
    return {name: without_draft(part) for name, part in document.items() if name != "$schema" or isinstance(part, dict)}


@cache
def draft_class(draft: str) -> type[Validator]:
    """Returns the class of validators of a draft, whose patterns run in linear time."""
    extended: type[Validator] = validators.extend(
        validators.validator_for({"$schema": draft}), {**KEYWORDS, "uniqueItems": unique_items}
    )
    return extended


def _check(document: Any) -> None:
    """Raises `SchemaError` if the document is no schema of its draft."""
    checker = _checker(draft_of(document))
    try:
        found = exceptions.best_match(islice(checker.iter_errors(document), 20))
    except RecursionError:
        raise SchemaError(f"nested deeper than {MAX_DEPTH} objects and arrays") from None
    if found is not None:
        where = "/".join(str(part)[:100] for part in found.absolute_path)
        raise SchemaError(f"not a JSON Schema: #/{where}: {found.message[:300]}")


@cache
def _checker(draft: str) -> Validator:
    """A validator of schemas by the draft's metaschema. Formats are not checked: `regex` would compile a pattern."""
    linear = validators.extend(validators.validator_for({"$schema": draft}), {"uniqueItems": unique_items})
    metaschemas: SchemaRegistry = Registry().with_resources(
        (uri, specification_with(draft).create_resource(without_draft(REGISTRY.contents(uri)))) for uri in REGISTRY
    )
    return linear(metaschemas.contents(draft), registry=metaschemas)


def unique_items(_validator: Any, unique: bool, instance: Any, _schema: Any) -> Iterator[exceptions.ValidationError]:
    """Checks `uniqueItems` in linear time; `jsonschema`'s own check takes quadratic time for items of mixed types."""
    if unique and isinstance(instance, list) and len({frozen(part) for part in instance}) < len(instance):
        yield exceptions.ValidationError("an array has an item twice")
