"""What hangs or is not read stalls no other request: a slow reader, a store, a model folder, clients that warm."""

import threading

import pytest

from adapters.fake.engine import FakeModels
from adapters.fake.options import HYBRID, FakeOptions
from domain.ids import ModelId
from domain.models.model_card import ModelSource
from tests.support.http.clients import PROMPT, WARM, RawClient
from tests.support.http.servers.fake_service import DEFAULT_MODEL, PATIENCE_S, FakeService, fake_service
from tests.support.processes.gate import Gate
from tests.support.stores.faulty_stores import GatedStore

PATH = "/v1/completions"
OTHER_MODEL = "fake-hybrid"
MORE_THAN_THREADS = 40
"""asyncio's own executor has 32 threads at most."""


def check_answered(service: FakeService, **fields: object) -> None:
    response = service.client.post(PATH, json={"prompt": "still there?", "max_tokens": 3, **fields})
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["completion_tokens"] == 3


def test_a_model_for_which_there_is_no_room_is_503_with_retry_after() -> None:
    gate = Gate("decode", 1)
    with fake_service(FakeOptions(hook=gate), max_loaded=1, room_wait_s=0) as service:
        running = RawClient(service.base_url, PATH, {"prompt": "x", "max_tokens": 5})
        gate.wait_until_reached()
        response = service.client.post(PATH, json={"prompt": "y", "model": OTHER_MODEL})
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["code"] == "models_busy"
        assert "x-should-retry" not in response.headers
        gate.open()
        running.read_until(b'"usage"')
        running.leave()
        check_answered(service, model=OTHER_MODEL)


def test_many_that_warm_and_a_store_that_does_not_write_keep_nobody_waiting() -> None:
    store = GatedStore()
    with fake_service(FakeOptions(layout=HYBRID), reuses=True, store=store) as service:
        try:
            prompts = [f"{number} {PROMPT}" for number in range(MORE_THAN_THREADS)]
            clients = [RawClient(service.base_url, WARM, {"prompt": prompt}) for prompt in prompts]
            service.wait_until(
                lambda: len(service.events.of("RequestEnded")) == MORE_THAN_THREADS, "all prompts to be computed"
            )
            check_answered(service)
            for client in clients[1:]:
                client.leave()
            service.wait_until(
                lambda: service.pool.status(ModelId(DEFAULT_MODEL)).num_leases == 1, "the others to be gone"
            )
        finally:
            store.open()
        clients[0].read_until(b'"stored_tokens"')
        clients[0].leave()


class SilentModels(FakeModels):
    """A finder that never finds `far/away` until its event is set."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()
        self.num_asked = 0

    def find(self, id: ModelId) -> ModelSource | None:
        if id.startswith("far/away"):
            self.num_asked += 1
            assert self.answers.wait(2 * PATIENCE_S)
        return super().find(id)


@pytest.mark.parametrize("num_clients", [MORE_THAN_THREADS])
def test_a_folder_of_models_that_does_not_answer_keeps_nobody_waiting(num_clients: int) -> None:
    models = SilentModels()
    with fake_service(models=models) as service:
        check_answered(service)
        clients = [
            RawClient(service.base_url, PATH, {"prompt": "x", "model": f"far/away{number}"})
            for number in range(num_clients)
        ]
        try:
            service.wait_until(lambda: models.num_asked > 1, "the folder to be asked")
            check_answered(service)
        finally:
            models.answers.set()
        for client in clients:
            client.read_until(b"model_not_found")
            client.leave()
