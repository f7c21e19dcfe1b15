"""Each hook, from a module that YAML names to the object that Klamm calls; and what the host says of bad plugins."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import pytest

from klamm.core.config.settings import Settings, load_settings
from klamm.core.errors import KlammError, PluginError
from klamm.core.interfaces.provider import Provider
from klamm.core.interfaces.serde import SerdeContext
from klamm.core.plugins import plugin_host
from klammtest.pages.hook_reference import hooks
from klammtest.plugins.everything import Thing

MODULE = "klammtest.plugins.everything"
CHOICE = {"plugin": "everything", "the.answer": 42}


def settings(module: str, **sections: Any) -> Settings:
    return load_settings({"plugins": {"modules": [module]}, **sections})


def use_codecs(module: str) -> None:
    assert settings(module).codec_table().by_name("everything").codec_id == 7
    assert settings(module, producer={"compression.type": "everything"}).producer.compression_type == "everything"


def use_coordinations(module: str) -> None:
    made: Any = settings(module, coordination=CHOICE).make_coordination()
    assert (type(made), made.answer) == (Thing, 42)


def use_offset_stores(module: str) -> None:
    coordination: Any = object()
    made: Any = settings(module, offsets=CHOICE).make_offset_store(coordination)
    assert (made.answer, made.more) == (42, (coordination,))


def use_envelopes(module: str) -> None:
    said = settings(module, topics={"t": {"serde": "avro", "envelope": "everything"}}).topic_format("t")
    assert isinstance(said.envelope, Thing)


def use_serdes(module: str) -> None:
    serdes, topics = {"everything": {"the.answer": 1}}, {"t": {"serde": "everything", "the.answer": 42}}
    loaded = settings(module, serdes=serdes, topics=topics)
    context = SerdeContext("127.0.0.1:1", lambda: None, loaded.topic_format)  # type: ignore[arg-type, return-value]
    made: Any = loaded.make_serde("everything", context)
    assert (made.answer, made.more) == (1, (context,))
    assert loaded.topic_format("t").options == {"the.answer": 42}


def use_audits(module: str) -> None:
    made: Any = settings(module, audit=CHOICE).make_audit()
    assert made.answer == 42


def use_sinks(module: str) -> None:
    made: Any = settings(module, sinks={"s": {**CHOICE, "topics": ["t"]}}).make_sink("s")
    assert made.answer == 42


def use_loads(module: str) -> None:
    made: Any = settings(module, sinks={"s": {**CHOICE, "plugin": "everything-load", "topics": ["t"]}}).make_load("s")
    assert made.answer == 42


def use_producer_interceptors(module: str) -> None:
    check_list(module, "producer", "interceptors", lambda s: s.make_producer_interceptors())


def use_consumer_interceptors(module: str) -> None:
    check_list(module, "consumer", "interceptors", lambda s: s.make_consumer_interceptors())


def use_services(module: str) -> None:
    context: Any = object()
    named = settings(module, broker={"services": ["everything", CHOICE]}).make_services(context)
    made: list[Any] = [service for _, service in named]
    assert [(name, thing.answer, thing.more) for (name, _), thing in zip(named, made, strict=True)] == [
        ("everything", 0, (context,)),
        ("everything", 42, (context,)),
    ]


def use_topic_validators(module: str) -> None:
    check_list(module, "broker", "topic.validators", lambda s: s.make_topic_validators()[:-1])


def use_authenticators(module: str) -> None:
    check_one(module, "authenticator", lambda s: s.make_authenticator())


def use_authorizers(module: str) -> None:
    check_one(module, "authorizer", lambda s: s.make_authorizer())


def check_one(module: str, key: str, make: Callable[[Settings], Any]) -> None:
    assert make(settings(module)) is None
    assert make(settings(module, broker={key: "everything"})).answer == 0
    assert make(settings(module, broker={key: CHOICE})).answer == 42


def check_list(module: str, section: str, key: str, make: Callable[[Settings], list[Any]]) -> None:
    made = make(settings(module, **{section: {key: ["everything", CHOICE]}}))
    assert [thing.answer for thing in made] == [0, 42]
    assert [thing.answer for thing in make(settings(module, **{section: {key: "everything"}}))] == [0]


def use_commands(module: str) -> None:
    host = plugin_host((module,))
    assert [c.target for c in host.commands if c.name == "hello"] == ["klammtest.plugins.everything:hello"]


USES: dict[str, Callable[[str], None]] = {
    name.replace("use_", "klamm_"): use for name, use in list(globals().items()) if name.startswith("use_")
}


@pytest.mark.parametrize("hook", hooks())
def test_what_a_hook_offers_is_used(hook: str) -> None:
    USES[hook](MODULE)


@pytest.mark.parametrize("hook", hooks())
def test_it_is_used_by_that_hook_alone(hook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same plugin without this one hook offers nothing of its kind."""
    others = {name: each for name, each in vars(sys.modules[MODULE]).items() if name not in ("__name__", hook)}
    made = ModuleType(f"everything_but_{hook}")
    vars(made).update(others)
    monkeypatch.setitem(sys.modules, made.__name__, made)
    with pytest.raises((KlammError, AssertionError)):
        USES[hook](made.__name__)


def test_loaded_names_each_hook_and_where_it_is_from() -> None:
    rows = {row.name: row for row in plugin_host((MODULE,)).loaded()}
    assert rows[MODULE].hooks == tuple(sorted(name for name in vars(sys.modules[MODULE]) if name.startswith("klamm_")))
    assert rows["codecs"].source.startswith("klamm ")
    assert (rows["codecs"].module, rows["codecs"].provides) == (
        "klamm.plugins.codecs", ("gzip", "snappy", "lz4", "zstd"),
    )  # fmt: skip


def module(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> str:
    made = ModuleType(name)
    exec(
        f"from klamm.core.hookspecs import hookimpl\nfrom klamm.core.interfaces.provider import Provider\n{text}",
        vars(made),
    )
    monkeypatch.setitem(sys.modules, name, made)
    return name


BAD = {
    "twice": (
        "@hookimpl\ndef klamm_codecs():\n    return [Provider('gzip', object)]\n",
        "two plugins provide the codec 'gzip': 'bad_twice' and 'codecs'|two plugins provide the codec 'gzip': 'codecs'",
    ),
    "raises": ("@hookimpl\ndef klamm_sinks():\n    raise OSError('no disk')\n", "hook klamm_sinks raised OSError"),
    "unknown": ("@hookimpl\ndef klamm_codex():\n    return []\n", "a hook that does not exist: .*klamm_codex"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_plugin_is_one_line(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    text, words = BAD[name]
    with pytest.raises(PluginError, match=words) as caught:
        plugin_host((module(monkeypatch, f"bad_{name}", text),)).call_hooks()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", ["no.such:Config", "klamm.core.errors:NoSuch", "", "klamm.core.errors"])
def test_a_configuration_that_cannot_be_imported_is_one_line(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    text = f"@hookimpl\ndef klamm_codecs():\n    return [Provider('odd', lambda _: None, {place!r})]\n"
    host = plugin_host((module(monkeypatch, f"odd_{len(place)}", text),))
    host.call_hooks()
    with pytest.raises(PluginError, match=f"the configuration {place} of 'odd' cannot be loaded: ") as caught:
        host.codecs.create("odd")
    assert "\n" not in str(caught.value)


def test_the_model_of_each_provider_is_what_its_function_takes() -> None:
    """A model that is given by its place is not checked by mypy."""
    host = plugin_host()
    host.call_hooks()
    providers = [offer for offers in host._offered.values() for _, offer in offers if isinstance(offer, Provider)]
    functions = {provider: provider._create for provider in providers if isinstance(provider._create, FunctionType)}
    assert {provider.config.__name__ for provider in functions} > {"AvroOptions", "EtcdConfig", "LakeConfig"}
    for provider, function in functions.items():
        given = next(iter(function.__annotations__.values()), "NoConfig")
        assert given == provider.config.__name__, provider.name


def test_a_plugin_that_cannot_be_imported_is_one_line() -> None:
    with pytest.raises(PluginError, match=r"plugin 'no\.such' \(no\.such\) cannot be loaded: ModuleNotFoundError"):
        plugin_host(("no.such",))
