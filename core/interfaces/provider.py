"""A provider: how a plugin offers one implementation of a seam, by name, with the model of its configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

T = TypeVar("T")


class NoConfig(BaseModel):
    """The configuration of a plugin that has none: any key is refused."""

    model_config = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class Provider(Generic[T]):
    """One implementation of a seam.

    `name` is what YAML selects it by; `config` is the pydantic model its YAML section is validated against before
    anything starts (forbid extras, alias the dotted Kafka names); `create` takes a validated `config` instance and
    returns the object that the core then calls (per batch, never per record through pluggy).
    """

    name: str
    create: Callable[..., T]
    config: type[BaseModel] = NoConfig
    summary: str = ""
