"""GET /admin/api/logs: what the server logged, by level, only what is new, for admins, and without their keys."""

import logging

from domain.client import Client
from tests.support.browser.admin_api import complete, read
from tests.support.http.servers.fake_service import KEY, fake_service, headers, keyed_service

_logger = logging.getLogger("cairn.test")


def test_lines_by_level_and_only_new_ones() -> None:
    with fake_service() as service:
        _logger.warning("careful")
        _logger.error("it failed")
        told = read(service, "logs")
        assert [(one["level"], one["logger"], one["text"]) for one in told["data"]] == [
            ("warning", "cairn.test", "careful"),
            ("error", "cairn.test", "it failed"),
        ]
        assert told["data"][0]["unix_s"] == service.clock.unix_ns() / 1e9
        assert [one["text"] for one in read(service, "logs?level=error")["data"]] == ["it failed"]
        assert read(service, f"logs?since={told['last']}") == {**told, "data": []}
        assert read(service, "logs?level=loud", 400)["error"]["param"] == "level"
        assert read(service, "logs?since=-1", 400)["error"]["param"] == "since"


def test_only_an_admin_reads_them() -> None:
    with keyed_service(Client("ann"), Client("root", admin=True)) as service:
        complete(service, "x", headers=headers("ann"))
        assert service.client.get("/admin/api/logs").status_code == 401
        assert service.client.get("/admin/api/logs", headers=headers("ann")).status_code == 403
        assert KEY not in service.client.get("/admin/api/logs", headers=headers("root")).text
