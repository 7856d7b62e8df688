"""What is cleared on a server without work goes back to the system, and not only when somebody computes again."""

import httpx

from application.events import PressureRelieved
from application.settings import EngineSettings, ModelSettings, ServerSettings, Settings, StoreSettings
from domain.byte_size import ByteSize
from domain.ids import ModelId
from tests.support.http.servers.fake_service import wait_until
from tests.support.http.servers.live_service import LiveService, live_service
from tests.support.patience import PATIENCE_S
from tests.support.telemetry.recording import RecordingEvents

SETTINGS = Settings(
    server=ServerSettings(port=0),
    model=ModelSettings(default=ModelId("fake-attention"), download=False),
    engine=EngineSettings(backend="fake", block_size=16),
    store=StoreSettings(kind="off", hot_tier=ByteSize(num_bytes=1 << 20)),
)


def wait_for_relief(live: LiveService, events: RecordingEvents, number: int) -> None:
    """Looks come as fast as they are asked for."""

    def is_told() -> bool:
        live.service.container.engine().wake()
        told = [event.kind for event in events.events if isinstance(event, PressureRelieved)]
        return told.count("clear_cache") >= number

    wait_until(is_told, f"relief {number}")


def test_what_is_cleared_while_nothing_runs_is_given_back() -> None:
    events = RecordingEvents()
    with (
        live_service(SETTINGS, extra_sinks=(events,)) as live,
        httpx.Client(base_url=live.base_url, timeout=PATIENCE_S) as client,
    ):
        body = {"prompt": "x" * 200, "max_tokens": 2}
        assert client.post("/v1/completions", json=body).status_code == 200
        wait_for_relief(live, events, 1)
        assert client.post("/v1/cache/clear", json={}).json()["hot_records"]
        wait_for_relief(live, events, 2)
