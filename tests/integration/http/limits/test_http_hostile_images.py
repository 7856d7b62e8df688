"""Hostile images over a socket: each is answered or refused by its name, and the next request is answered."""

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from adapters.fake.engine import FakeModels
from adapters.fake.options import FakeOptions
from adapters.fake.vision import ToyImages
from application.ports.vision import ProcessedImage
from domain.request.media import Image
from tests.support.effort import drawn
from tests.support.http.hostile_images import picture, send
from tests.support.http.images import CAT, SHOWING, picture_service
from tests.support.http.servers.fake_service import DEFAULT_MODEL, FakeService, fake_service
from tests.support.patience import PATIENCE_S
from tests.support.processes.picture_images import Processors

CHAT = SHOWING["chat"]


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    with picture_service() as running:
        yield running


def ask(service: FakeService, data: bytes) -> httpx.Response:
    return service.client.post(CHAT.path, json=CHAT.body(data, "what is it?"))


@pytest.mark.slow
def test_no_image_is_more_than_a_400(service: FakeService) -> None:
    found = send(lambda path, body: service.client.post(path, json=body), drawn(1_000), seed=3)
    assert set(found) == {200, 400}
    assert ask(service, picture()).status_code == 200


def test_an_image_that_takes_long_keeps_no_other_request_waiting() -> None:
    entered, gate = threading.Event(), threading.Event()

    class Slow(ToyImages):
        def process(self, image: Image) -> ProcessedImage:
            if b"slow" in image.data:
                entered.set()
                assert gate.wait(PATIENCE_S)
            return super().process(image)

    options, models = FakeOptions(images=Slow()), FakeModels(seeing=[DEFAULT_MODEL])
    with fake_service(options, models=models, images=Processors(Slow())) as service:
        late: list[Any] = []
        asking = threading.Thread(target=lambda: late.append(ask(service, b"toy:1x1:slow").status_code))
        asking.start()
        try:
            assert entered.wait(PATIENCE_S)
            assert ask(service, CAT).status_code == 200
            assert service.client.get("/health/ready").status_code == 200
        finally:
            gate.set()
            asking.join(PATIENCE_S)
    assert late == [200]
