"""The pages of subjects, versions and differences: what they show, that it is escaped; one of them in a browser."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote

import pytest

from klammtest.pages.audit_page import BROWSER, NO_BROWSER, Page, chromium
from klammtest.registry import RunningRegistry

HOSTILE = "<script>alert('x')</script> & \"q\" \u202e"


def show(registry: RunningRegistry, path: str, method: str = "GET") -> tuple[int, str]:
    connection = HTTPConnection(registry.address.host, registry.address.port, timeout=60)
    try:
        connection.request(method, f"/ui{path}")
        response = connection.getresponse()
        text = response.read().decode()
    finally:
        connection.close()
    assert response.headers["content-security-policy"].startswith("default-src 'none'")
    if path != "/page.css":
        page = Page(text)
        assert len(page.all("h1")) == 1 or method == "HEAD"
        named = [value for _, given in page.tags for name, value in given.items() if name in ("src", "href")]
        assert all(value and value.startswith(("/", "#", "data:")) for value in named), (
            "it loads nothing from elsewhere"
        )
        assert not page.all("script")
    return response.status, text


def record(*fields: dict[str, object], **more: object) -> dict[str, object]:
    return {"type": "record", "name": "R", "fields": list(fields), **more}


@pytest.fixture(scope="module")
def name(registry: RunningRegistry) -> str:
    """A subject with three versions, one of them deleted; all that a client names is hostile."""
    path = quote(HOSTILE.replace("\u202e", ""), safe="")
    number = {"name": "a", "type": "int"}
    registry.register(path, record(number, doc=HOSTILE), metadata={"properties": {"owner": HOSTILE}})
    registry.register(path, record(number, {"name": "b", "type": "int", "default": 0}))
    registry.register(path, record(number, {"name": "c", "type": "string", "default": HOSTILE}))
    registry.delete(f"/subjects/{path}/versions/2")
    reference = {"name": "R", "subject": HOSTILE.replace("\u202e", ""), "version": 1}
    holder = {"type": "record", "name": "H", "fields": [{"name": "r", "type": "R"}]}
    registry.register("page-holder", holder, references=[reference])
    return path


def test_subjects(registry: RunningRegistry, name: str) -> None:
    status, text = show(registry, "/")
    assert status == 200
    assert f'href="/ui/subjects/{name}"' in text
    assert "<script>" not in text
    _, some = show(registry, "/?prefix=page-")
    assert "page-holder" in some
    assert name not in some
    assert "There is no such subject" in show(registry, "/?prefix=%3Cb%3E")[1]
    assert show(registry, "/?offset=x")[0] == 422


def test_versions(registry: RunningRegistry, name: str) -> None:
    status, text = show(registry, f"/subjects/{name}")
    assert status == 200
    assert "<script>" not in text
    assert [f"/ui/subjects/{name}/{pair}" in text for pair in ("1/2", "2/3")] == [True, True]
    assert (text.count(">live<"), text.count(">deleted<")) == (2, 1)
    _, one = show(registry, f"/subjects/{name}/1")
    assert "&lt;script&gt;" in one
    assert "\u202e" not in one, "what reorders text is escaped"
    assert "page-holder, version 1" in one
    assert "owner" in one
    _, holder = show(registry, "/subjects/page-holder/latest")
    assert f'href="/ui/subjects/{name}/1"' in holder


def test_differences(registry: RunningRegistry, name: str) -> None:
    status, text = show(registry, f"/subjects/{name}/1/3")
    assert status == 200
    assert "Version 3 reads data of version 1: yes" in text
    assert "<ins>+" in text
    assert "<script>" not in text
    registry.register("page-broken", record({"name": "a", "type": "int"}))
    other = json.dumps(record({"name": "b", "type": "int"}))
    registry.post("/subjects/page-broken/versions?force=true", {"schema": other})
    _, broken = show(registry, "/subjects/page-broken/1/2")
    assert "Version 2 reads data of version 1: no" in broken
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in broken
    assert "The texts are equal" in show(registry, "/subjects/page-broken/1/1")[1]


def test_what_is_not_there(registry: RunningRegistry, name: str) -> None:
    for path in ("/subjects/nobody", f"/subjects/{name}/9", f"/subjects/{name}/1/9", "/nothing", "/subjects/a/1/2/3"):
        assert show(registry, path)[0] == 404
    assert show(registry, f"/subjects/{name}/x")[0] == 422
    for method in ("POST", "PUT", "DELETE"):
        assert show(registry, f"/subjects/{name}", method)[0] == 405
    assert show(registry, "/page.css")[0] == 200


@pytest.mark.skipif(BROWSER is None, reason=NO_BROWSER)
def test_a_browser_without_a_network_shows_the_differences(
    registry: RunningRegistry, name: str, tmp_path: Path
) -> None:
    shown = chromium(f"{registry.url}/ui/subjects/{name}/1/3", "--dump-dom", folder=tmp_path)
    assert "Version 3 reads data of version 1" in shown
    assert "<ins>" in shown
    chromium(f"{registry.url}/ui/", "--window-size=1100,900", "--screenshot=page.png", folder=tmp_path)
    assert (tmp_path / "page.png").stat().st_size > 10_000
