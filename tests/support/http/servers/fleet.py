"""Three servers on the toy engine behind a real proxy or router with its configuration of deploy/fleet."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from adapters.fake import FakeOptions
from tests.support.http.servers.fake_service import FakeService, fake_service, wait_until
from tests.support.patience import PATIENCE_S
from tests.support.processes.gate import Gate
from tests.support.processes.servers.proxies import Proxy, proxy

MODEL = "fake-attention"


@dataclass
class Fleet:
    services: list[FakeService]
    gates: list[Gate]
    proxy: Proxy
    client: httpx.Client

    def ask(self, prompt: str = "say something", **headers: str) -> int:
        """Returns the number of the server that answered."""
        before = self.queued()
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 2}
        answer = self.client.post("/v1/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        after = self.queued()
        (number,) = [at for at in range(len(after)) if after[at] > before[at]]
        return number

    def queued(self) -> list[int]:
        """Returns how many requests each server has got."""
        return [len(service.events.of("RequestQueued")) for service in self.services]

    def session_of(self, number: int, header: str = "x-session-id") -> str:
        """A session that this server has."""
        return next(name for name in map(str, range(1000)) if self.ask(**{header: name}) == number)

    def stop(self, number: int) -> None:
        """Returns once this server refuses connections."""
        url = self.services[number].base_url
        self.services[number].server.stop()
        wait_until(lambda: not is_open(url), "the server to be closed")


@contextmanager
def fleet_behind(kind: str, folder: Path, *options: str) -> Iterator[Fleet]:
    """`options`: further ones of a router's command line. Each server stops at its gate in a long answer."""
    with ExitStack() as stack:
        gates = [Gate("decode", 3) for _ in range(3)]
        made = [fake_service(FakeOptions(eos_every=0, hook=gate)) for gate in gates]
        services, one = behind(stack, kind, made, folder, options, {})
        client = stack.enter_context(httpx.Client(base_url=one.base_url, timeout=PATIENCE_S))
        yield Fleet(services, gates, one, client)
        for gate in gates:
            gate.open()


def behind(
    stack: ExitStack,
    kind: str,
    made: Sequence[AbstractContextManager[FakeService]],
    folder: Path,
    options: Sequence[str],
    headers: Mapping[str, str],
) -> tuple[list[FakeService], Proxy]:
    """Three started servers that have their model, and the proxy before them, until `stack` is closed."""
    services = [stack.enter_context(one) for one in made]
    for service in services:
        body = {"model": MODEL, "prompt": "x", "max_tokens": 1}
        assert service.client.post("/v1/completions", json=body, headers=headers).status_code == 200
    addresses = [service.base_url.removeprefix("http://") for service in services]
    return services, stack.enter_context(proxy(kind, addresses, folder, *options))


def is_open(url: str) -> bool:
    try:
        httpx.get(f"{url}/health/live")
    except httpx.TransportError:
        return False
    return True
