"""Pages over HTTP: who may have them, what they may do in a browser, and that nothing else is served beside them."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from domain.client import Client
from interfaces.http.pages.routes import FOLDER, assets
from tests.support.http.servers.fake_service import FakeService, fake_service, headers, keyed_service
from tests.support.patience import PATIENCE_S


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    with fake_service() as running:
        yield running


@pytest.mark.parametrize("path", sorted(assets()))
def test_every_file_is_served_with_a_strict_policy(path: str, service: FakeService) -> None:
    answer = service.client.get(path)
    assert answer.status_code == 200
    assert answer.content == assets()[path].body
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "connect-src": "'self'",
        "img-src": "'self' data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    kind, *parameters = answer.headers["content-type"].split("; ")
    assert kind in ("text/html", "text/css", "text/javascript", "image/svg+xml")
    assert parameters == (["charset=utf-8"] if kind.startswith("text/") else [])


def test_the_start_leads_a_browser_to_the_chat_and_a_client_to_all_there_is(service: FakeService) -> None:
    answer = service.client.get("/", headers={"accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"})
    assert (answer.status_code, answer.headers["location"], answer.content) == (307, "/chat", b"")
    told = service.client.get("/").json()
    assert told.pop("name") == "cairn"
    assert told.pop("api") == "/v1"
    assert sorted(told) == ["admin", "chat", "docs", "schema"]
    assert all(service.client.get(path).status_code == 200 for path in told.values())


def test_a_browser_that_has_it_is_answered_304(service: FakeService) -> None:
    first = service.client.get("/admin")
    for known in (first.headers["etag"], f'"other", W/{first.headers["etag"]}', "*"):
        again = service.client.get("/admin", headers={"if-none-match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
        assert again.headers["content-security-policy"] == first.headers["content-security-policy"]
    assert service.client.get("/admin", headers={"if-none-match": '"other"'}).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/pages/",
        "/pages/nothing.js",
        "/pages/admin.html",
        "/pages/../auth.py",
        "/pages/%2e%2e/auth.py",
        "/pages/..%2fasset.py",
        "/pages//etc/passwd",
        "/pages/%2fetc%2fpasswd",
        "/pages/design.css%00",
        "/pages/vendor/VENDORED.md",
    ],
)
def test_nothing_else_is_served(path: str, service: FakeService) -> None:
    with httpx.Client(timeout=PATIENCE_S) as client:
        request = client.build_request("GET", service.base_url)
        request.url = request.url.copy_with(raw_path=path.encode())  # as it stands: clients tidy paths up
        assert client.send(request).status_code == 404


def test_pages_need_no_key_and_what_they_ask_for_does() -> None:
    with keyed_service(Client("ann")) as service:
        assert all(service.client.get(path).status_code == 200 for path in (*assets(), "/admin/", "/"))
        assert service.client.get("/pages/nothing.js").status_code == 404
        for path in ("/v1/models", "/v1/models/", "/pages/../v1/models", "/metrics/../v1/models"):
            assert service.client.get(path).status_code == 401
        assert service.client.get("/v1/models", headers=headers("ann")).status_code == 200


def test_only_what_browsers_need_is_listed(tmp_path: Path) -> None:
    for name in ("one.html", "deep/two.html", "deep/three.js", "LICENSE", "notes.md", "code.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    found = assets(tmp_path)
    assert set(found) == {"/one", "/pages/deep/two.html", "/pages/deep/three.js"}
    assert found["/one"].body == b"one.html"
    assert len({asset.etag for asset in found.values()}) == 3


def test_no_file_writes_markup_or_styles_into_a_page() -> None:
    """The policy forbids inline code; and text of models and clients must stay text."""
    for file in FOLDER.rglob("*"):
        if file.suffix == ".html":
            text = file.read_text()
            assert " style=" not in text
            assert " on" + "click" not in text
            assert text.count("<script") == text.count("<script src=") + text.count('<script type="module" src=')
        if file.suffix == ".js" and "vendor" not in file.parts:
            text = file.read_text()
            markup = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(")
            assert not any(word in text for word in markup), file
            assert len(text.splitlines()) <= 400, file
