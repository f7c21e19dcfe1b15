"""The base of all configuration sections: Kafka's dotted names, Kafka's types, and one line of help for each key.

A field `log_retention_ms` is the key `log.retention.ms`. Plugins may derive their own sections from `Section`; relative
paths of the type `ConfigPath` are relative to the folder of the YAML file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from .limits import INT_MAX, LONG_MAX, SHORT_MAX
from .units import in_digits

__all__ = [
    "BASE_DIR",
    "INT_MAX",
    "KEY_PROBLEM",
    "LONG_MAX",
    "MISSING",
    "SHORT_MAX",
    "ConfigKey",
    "ConfigPath",
    "ConfigSource",
    "ConfigType",
    "Double",
    "Int",
    "Long",
    "Names",
    "Section",
    "TimeZone",
    "definitions",
    "dotted",
    "flat",
    "from_folder",
    "key",
    "to_string",
    "values",
    "wrong_key",
]

BASE_DIR = "base_dir"
"""The key of the validation context whose value is the folder of the YAML file."""


class ConfigType(IntEnum):
    """A key's type in DescribeConfigs (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


def _whole_number(value: Any) -> Any:
    """Refuses booleans: YAML's `yes` would be taken for 1."""
    if isinstance(value, bool):
        raise ValueError("expected a whole number, got a boolean")
    if isinstance(value, str) and "." in value:
        raise ValueError(f"expected a whole number, got {value!r}")
    return _number(value)


def _number(value: Any) -> Any:
    """Refuses text that is a number in Python alone: Kafka's tools, which are shown it, cannot read it."""
    if isinstance(value, str) and not in_digits(value):
        raise ValueError(f"expected a number in the digits 0 to 9, got {value!r}")
    return value


def _split_list(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _path(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, str | Path) or not str(value).strip():
        raise ValueError("expected a path")
    return from_folder(value, info).resolve()


def from_folder(path: str | Path, info: ValidationInfo) -> Path:
    """Returns the path, a relative one resolved from the folder of the YAML file; `~` is the user's home directory."""
    try:
        own = Path(path).expanduser()
    except RuntimeError:
        raise ValueError(f"there is no home directory for the '~' in {str(path)!r}") from None
    return Path((info.context or {}).get(BASE_DIR, ""), own)


def _time_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        raise ValueError(f"expected a time zone such as Europe/Berlin, got {name!r}") from None
    return name


Int = Annotated[int, BeforeValidator(_whole_number), Field(ge=-(2**31), le=INT_MAX), ConfigType.INT]
Long = Annotated[int, BeforeValidator(_whole_number), Field(ge=-(2**63), le=LONG_MAX), ConfigType.LONG]
Double = Annotated[float, BeforeValidator(_number), ConfigType.DOUBLE]
Names = Annotated[tuple[str, ...], BeforeValidator(_split_list), ConfigType.LIST]
"""A YAML list, or Kafka's form: one string separated by commas."""
TimeZone = Annotated[str, AfterValidator(_time_zone), ConfigType.STRING]
"""A name of the IANA time zone database."""
ConfigPath = Annotated[Path, BeforeValidator(_path), ConfigType.STRING]


KEY_PROBLEM = "klamm_key"
MISSING = "is required and missing"


def wrong_key(name: str, message: str) -> PydanticCustomError:
    """Returns the error for a check of several keys, so that the message is shown at the key to be changed."""
    return PydanticCustomError(KEY_PROBLEM, "{message}", {"key": name, "message": message})


def dotted(field: str) -> str:
    return field.replace("_", ".")


class Section(BaseModel):
    """An immutable section. Unknown keys are refused; keys have dots where attributes have underscores."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=dotted,
        validate_by_name=True,
        validate_by_alias=True,
        validate_default=True,
        arbitrary_types_allowed=True,
    )


def key(default: Any, doc: str, **bounds: Any) -> Any:
    """Declares a key with its default, one line of help and pydantic's bounds (`ge`, `le`, `gt`)."""
    return Field(default=default, description=doc, **bounds)


class ConfigSource(IntEnum):
    """The source of a value (KIP-226, KIP-412)."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """A key as shown in the documentation and by DescribeConfigs."""

    name: str
    type: ConfigType
    default: Any
    doc: str


def definitions(model: type[BaseModel]) -> Iterator[ConfigKey]:
    """Yields the keys of a section in the order in which the model declares them."""
    for name, info in model.model_fields.items():
        default = None if info.is_required() else info.get_default(call_default_factory=True, validated_data={})
        own_name = dotted(name) if issubclass(model, Section) else name
        yield ConfigKey(info.alias or own_name, _type(info), default, info.description or "")


def _type(info: FieldInfo) -> ConfigType:
    for mark in info.metadata:
        if isinstance(mark, ConfigType):
            return mark
    kinds = set(flat(info.annotation))
    for kind, config_type in (
        (bool, ConfigType.BOOLEAN),
        (int, ConfigType.LONG),
        (float, ConfigType.DOUBLE),
        (tuple, ConfigType.LIST),
    ):
        if kind in kinds:
            return config_type
    marks = [mark for kind in kinds for mark in getattr(kind, "__metadata__", ()) if isinstance(mark, ConfigType)]
    return marks[0] if marks else ConfigType.STRING


def flat(annotation: Any) -> Iterator[Any]:
    """Yields the members of a union, generic types without their arguments."""
    if get_origin(annotation) in (tuple, list, dict):
        yield get_origin(annotation)
    elif hasattr(annotation, "__metadata__") or not get_args(annotation) or get_origin(annotation) is Literal:
        yield annotation
    else:
        for part in get_args(annotation):
            yield from flat(part)


def to_string(value: Any) -> str:
    """Returns a value in the form in which Kafka's tools write it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return ",".join(f"{k}:{to_string(v)}" for k, v in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(to_string(v) for v in value)
    return str(value)


def values(section: BaseModel) -> dict[str, str]:
    """Returns the values of a section by their dotted names, in the form in which Kafka's tools write them."""
    fields = type(section).model_fields
    return {info.alias or dotted(name): to_string(getattr(section, name)) for name, info in fields.items()}
