"""A provider: how a plugin offers one implementation of a hook, by name, with the model of its configuration.

pydantic is imported only when a provider's configuration is used, so that `klamm --help` starts without it. So is a
model that is given as `module:Class`: a broker has no models of plugins that its file does not choose.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

from ..errors import PluginError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from .no_config import NoConfig

__all__ = ["Provider"]

P = ParamSpec("P")
T_co = TypeVar("T_co", covariant=True)
C = TypeVar("C", bound="BaseModel")


class Provider(Generic[P, T_co]):
    """One implementation of a hook's interface.

    YAML selects it by `name`. `config` is the pydantic model that its YAML section is validated against before
    anything starts (forbid extras, alias the dotted Kafka names), or its place, `module:Class`; without one the section
    may have no keys. `create` is called with a validated instance of `config` and then with the hook's further
    arguments: `Provider[[Coordination], OffsetStore]` is made by `create(config, coordination)`.
    """

    @overload
    def __init__(self, name: str, create: Callable[Concatenate[NoConfig, P], T_co], *, summary: str = "") -> None: ...
    @overload
    def __init__(
        self, name: str, create: Callable[Concatenate[C, P], T_co], config: type[C] | str, summary: str = ""
    ) -> None: ...
    def __init__(
        self,
        name: str,
        create: Callable[Concatenate[C, P], T_co],
        config: type[C] | str | None = None,
        summary: str = "",
    ) -> None:
        self.name = name
        self.summary = summary
        self._create = cast("Callable[Concatenate[BaseModel, P], T_co]", create)
        self._config: type[BaseModel] | str | None = config

    @property
    def config(self) -> type[BaseModel]:
        """Raises `PluginError` if the model cannot be imported."""
        if self._config is None:
            from .no_config import NoConfig

            return NoConfig
        if isinstance(self._config, str):
            module, _, name = self._config.partition(":")
            try:
                self._config = cast("type[BaseModel]", getattr(import_module(module), name))
            except (ImportError, AttributeError, ValueError) as error:
                what = f"the configuration {self._config} of {self.name!r}"
                raise PluginError(f"{what} cannot be loaded: {error}") from error
        return self._config

    def create(self, config: BaseModel, *args: P.args, **kwargs: P.kwargs) -> T_co:
        """Makes the object that the core then calls; `config` is an instance of the provider's own model."""
        return self._create(config, *args, **kwargs)
