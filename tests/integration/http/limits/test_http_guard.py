"""Whose requests are answered at all: hosts, origins and content types, before any key and any route."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import httpx
import pytest

from adapters.fake.options import FakeOptions, reply_with
from application.settings import ServerSettings
from tests.support.http.servers.fake_service import FakeService, fake_service
from tests.support.patience import PATIENCE_S

COMPLETIONS = "/v1/completions"
ROUTES = ("/health/live", "/health/ready", "/version", "/v1/models", "/schema/openapi.json", "/nowhere")
JSON = {"content-type": "application/json"}
PAGE = "http://localhost:3000"


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    with fake_service(FakeOptions(reply=reply_with("ok"))) as running:
        yield running


def code_of(response: httpx.Response) -> Any:
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error["code"]


class TestHost:
    @pytest.mark.parametrize(
        "host", ["evil.example", "localhost.evil.example", "evil.example:80", "8.8.8.8", "a b", ""]
    )
    def test_another_hosts_name_is_refused_on_every_route(self, service: FakeService, host: str) -> None:
        for route in ROUTES:
            response = service.client.get(route, headers={"host": host})
            assert response.status_code == 421, route
            assert code_of(response) == "host_not_allowed"
            assert "server.allowed_hosts" in response.json()["error"]["message"]
        assert service.client.post(COMPLETIONS, json={"prompt": "x"}, headers={"host": host}).status_code == 421

    @pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "127.9.9.9:8000", "[::1]", "[::1]:80"])
    def test_names_of_this_machine_are_answered(self, service: FakeService, host: str) -> None:
        assert service.client.get("/health/live", headers={"host": host}).status_code == 200

    def test_two_hosts_or_none_are_malformed(self, service: FakeService) -> None:
        for hosts in (b"", b"Host: localhost\r\nHost: evil.example\r\n"):
            assert b" 400 " in exchange(service, b"GET /version HTTP/1.1\r\n" + hosts + b"\r\n").splitlines()[0]

    def test_http_1_0_has_no_hosts(self, service: FakeService) -> None:
        """Old health checkers speak it; browsers never do."""
        assert b" 200 " in exchange(service, b"GET /health HTTP/1.0\r\n\r\n").splitlines()[0]

    def test_more_names_by_setting(self) -> None:
        with fake_service(settings=ServerSettings(port=0, allowed_hosts=("Cairn.lan",))) as service:
            for host, status in (("cairn.lan:8000", 200), ("CAIRN.LAN.", 200), ("x.cairn.lan", 421)):
                assert service.client.get("/version", headers={"host": host}).status_code == status
        with fake_service(settings=ServerSettings(port=0, allowed_hosts=("*",))) as service:
            assert service.client.get("/version", headers={"host": "whatever.example"}).status_code == 200

    def test_a_server_for_others_answers_to_addresses_but_not_to_names(self) -> None:
        """No name server can point an address elsewhere, so only names need listing."""
        with fake_service(settings=ServerSettings(host="0.0.0.0", port=0, api_key="k")) as service:
            for host, status in (("192.168.1.5:8000", 200), ("[fe80::1]:8000", 200), ("evil.example", 421)):
                assert service.client.get("/health", headers={"host": host}).status_code == status


class TestOrigin:
    @pytest.mark.parametrize("origin", ["http://evil.example", "null", PAGE, "", "file://", "http://127.0.0.1:1"])
    def test_a_page_of_somebody_else_is_refused(self, service: FakeService, origin: str) -> None:
        for method in ("GET", "OPTIONS", "POST"):
            response = service.client.request(method, "/v1/models", headers={"origin": origin})
            assert response.status_code == 403
            assert code_of(response) == "origin_not_allowed"
            assert "server.cors_origins" in response.json()["error"]["message"]
            assert not [name for name in response.headers if name.startswith("access-control-")]

    def test_the_servers_own_origin_is_none_of_those(self, service: FakeService) -> None:
        assert service.client.get("/v1/models", headers={"origin": service.base_url}).status_code == 200

    def test_requests_that_say_they_cross_sites_are_refused_without_an_origin(self, service: FakeService) -> None:
        def status(**more: str) -> int:
            headers = {"sec-fetch-site": "cross-site", **{f"sec-fetch-{name}": value for name, value in more.items()}}
            return service.client.get("/v1/models", headers=headers).status_code

        assert status(mode="no-cors", dest="image") == 403
        assert status(mode="navigate", dest="iframe") == 403
        assert status(mode="navigate", dest="document") == 200, "somebody followed a link"

    def test_pages_by_setting(self) -> None:
        settings = ServerSettings(port=0, api_key="k", cors_origins=(PAGE.upper(),))
        with fake_service(FakeOptions(reply=reply_with("ok")), settings=settings) as service:
            asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,x-any"}
            before = service.client.options(COMPLETIONS, headers={"origin": PAGE, **asked})
            assert before.status_code == 204
            assert before.headers["access-control-allow-origin"] == PAGE
            assert "authorization" in before.headers["access-control-allow-headers"]
            key = {"origin": PAGE, "authorization": "Bearer k", "sec-fetch-site": "cross-site"}
            answer = service.client.post(COMPLETIONS, json={"prompt": "x"}, headers=key)
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert "x-cairn-cache" in answer.headers["access-control-expose-headers"].lower()
            assert "access-control-allow-credentials" not in answer.headers
            unasked = service.client.get("/version", headers={"origin": PAGE})
            assert (unasked.status_code, unasked.headers["access-control-allow-origin"]) == (401, PAGE)
            assert service.client.get("/version", headers={"origin": "http://localhost:3001"}).status_code == 403

    def test_any_page_by_setting(self) -> None:
        with fake_service(settings=ServerSettings(port=0, cors_origins=("*",))) as service:
            answer = service.client.get("/version", headers={"origin": "null"})
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "*")


class TestContentType:
    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"content-type": "text/plain"},
            {"content-type": "application/x-www-form-urlencoded"},
            {"content-type": "multipart/form-data; boundary=application/json"},
            {"content-type": "text/plain; x=application/json"},
            {"content-type": "application/json, text/plain"},
            {"content-type": "application/jsonx"},
            {"content-type": "text/plain; x=application/octet-stream"},
            {"content-type": "application/octet-stream, text/plain"},
            {"content-type": ""},
        ],
    )
    def test_bodies_are_json_by_name(self, service: FakeService, headers: Mapping[str, str]) -> None:
        for path in (COMPLETIONS, "/v1/chat/completions", "/v1/cache/explain", "/v1/cache/warm"):
            response = service.client.post(path, content=b'{"prompt": "x"}', headers=headers)
            assert response.status_code == 415
            assert code_of(response) == "unsupported_media_type"
            assert "application/json" in response.json()["error"]["message"]

    @pytest.mark.parametrize(
        "name",
        ["application/json", "Application/JSON; charset=UTF-8", "application/json ;x", "application/octet-stream"],
    )
    def test_json_with_parameters_in_any_case_and_bytes(self, service: FakeService, name: str) -> None:
        response = service.client.post(COMPLETIONS, content=b'{"prompt": "x"}', headers={"content-type": name})
        assert response.status_code == 200


class TestContentTypeOfOllama:
    """`curl -d` and LiteLLM send Ollama's routes JSON under no name, or under another one."""

    TYPES: ClassVar = [{}, {"content-type": "application/x-www-form-urlencoded"}, {"content-type": "text/plain"}]

    @pytest.mark.parametrize("headers", TYPES)
    def test_programs_need_not_name_json(self, service: FakeService, headers: Mapping[str, str]) -> None:
        body = b'{"prompt": "x", "stream": false}'
        assert service.client.post("/api/generate", content=body, headers=headers).status_code == 200

    @pytest.mark.parametrize("headers", TYPES)
    @pytest.mark.parametrize("site", ["same-origin", "same-site", "none"])
    def test_browsers_have_to(self, service: FakeService, headers: Mapping[str, str], site: str) -> None:
        """A browser sends one of these headers with every POST of a page. Form data needs no preflight, so that a page
        of a site whose name was pointed at this machine, or that older browsers take for the same site, could send it.
        """
        for more in ({"origin": service.base_url}, {"sec-fetch-site": site}):
            response = service.client.post("/api/generate", content=b"{}", headers={**headers, **more})
            assert response.status_code == 415
            assert "application/json" in response.json()["error"]

    @pytest.mark.parametrize("path", ["/apis", "/v1/api/generate", "/API/generate", "//api/generate"])
    def test_no_other_route_takes_them(self, service: FakeService, path: str) -> None:
        assert service.client.request("POST", service.base_url + path, content=b"{}").status_code == 415

    def test_no_path_leads_out_of_them(self, service: FakeService) -> None:
        for path in (b"/api/../models/unload", b"/api/%2e%2e/models/unload", b"/api/..//models/unload"):
            head = b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
            assert b" 404 " in exchange(service, head).splitlines()[0]

    def test_a_page_under_another_name_is_refused_before(self, service: FakeService) -> None:
        for headers, status in (({"host": "evil.example"}, 421), ({"origin": "http://evil.example"}, 403)):
            assert service.client.post("/api/generate", content=b"{}", headers=headers).status_code == status


def test_the_guard_comes_before_the_key() -> None:
    with fake_service(settings=ServerSettings(port=0, api_key="k")) as service:
        assert service.client.get("/v1/models", headers={"host": "evil.example"}).status_code == 421
        assert service.client.get("/v1/models", headers={"origin": "null"}).status_code == 403
        assert service.client.get("/v1/models").status_code == 401


def test_refusals_are_counted(service: FakeService) -> None:
    before = len(service.events.of("HttpRefused"))
    service.client.get("/version", headers={"host": "evil.example"})
    service.client.get("/version", headers={"origin": "null"})
    service.client.post(COMPLETIONS, content=b"{}")
    refused = [event.reason for event in service.events.of("HttpRefused")[before:]]
    assert refused == ["host_not_allowed", "origin_not_allowed", "unsupported_media_type"]


def exchange(service: FakeService, request: bytes) -> bytes:
    """What the server sends to raw bytes, until it closes."""
    import socket

    with socket.create_connection(("127.0.0.1", service.server.port), timeout=PATIENCE_S) as client:
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        received = b""
        while data := client.recv(65_536):
            received += data
    return received
