"""A server on the toy engine with keys of several clients. The key of a client is its name and KEY."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from application.settings import ServerSettings
from domain.client import Client, KeyRing, key_digest, own_clients
from tests.support.http.servers.fake_service import FakeService, fake_service

KEY = "-s3cret-key"
SETTINGS = ServerSettings(port=0, api_key="default" + KEY, key_file="never read here")


def headers(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}{KEY}"}


def ring(*clients: Client) -> KeyRing:
    keyed = [replace(client, sha256=key_digest(f"{client.name}{KEY}".encode())) for client in clients]
    return KeyRing([*own_clients(SETTINGS.api_key), *keyed])


@contextmanager
def keyed_service(*clients: Client, settings: ServerSettings = SETTINGS, **options: Any) -> Iterator[FakeService]:
    with fake_service(options.pop("options", None), settings=settings, keys=ring(*clients), **options) as service:
        yield service
