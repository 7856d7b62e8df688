"""The cost of telemetry: two servers, one with everything on and one with it off, asked in turn for 8 streams.

    python -m bench.telemetry [--model DIR] [--rounds 40] [--streams 8] [--tokens 128] [--json FILE]

On: traces, metrics and logs over OTLP to a collector in this process, every request sampled, at the SDK's intervals,
and `/metrics` scraped every fifteen seconds. Off: `telemetry.enabled = false`. Every round asks both, each time in
another order, and is compared with itself: the rate while all streams run, and processor time of the server for a
token, which others on the machine disturb less. A ratio is the median over rounds. The status says whether on costs
at most 2 % of the rate.
"""

import argparse
import json
import os
import statistics
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.error import HTTPError

from bench.common.servers import ServerProcess
from bench.http_client import measure
from bench.serve import completion, text_of, together

MOST = 0.02
SCRAPE_EVERY_S = 15.0
OPENMETRICS = {"accept": "application/openmetrics-text;version=1.0.0"}


class _Collector(BaseHTTPRequestHandler):
    """Takes everything and keeps nothing."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return


@dataclass
class Side:
    """A server and what was measured of it, a figure a round. `token_cpu_s`: processor time for a token."""

    name: str
    server: ServerProcess
    rates: list[float] = field(default_factory=list[float])
    token_cpu_s: list[float] = field(default_factory=list[float])

    def run(self, model: str, num_streams: int, tokens: int, serial: int) -> None:
        requests = [
            completion(text_of(6, start=1000 * (serial * num_streams + stream)), tokens, model)
            for stream in range(num_streams)
        ]
        before_s = self.server.cpu_s()
        timelines = measure(self.server.url, requests)
        self.token_cpu_s.append((self.server.cpu_s() - before_s) / (num_streams * tokens))
        self.rates.append(together(timelines))


@contextmanager
def collector() -> Iterator[str]:
    """The endpoint of one that runs until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def scraper(url: str) -> Iterator[None]:
    """Ask for `/metrics` until the block ends."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(SCRAPE_EVERY_S):
            with suppress(HTTPError):  # off: there is no such path
                urllib.request.urlopen(urllib.request.Request(f"{url}/metrics", headers=OPENMETRICS)).read()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def paired(on: Sequence[float], off: Sequence[float]) -> dict[str, float]:
    """The median of the rounds' ratios, and where the middle half of them lies."""
    ratios = sorted(a / b for a, b in zip(on, off, strict=True))
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {"ratio": middle, "from": low, "to": high}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="adapters/huggingface/embedded/cairn-demo")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with TemporaryDirectory() as folder, collector() as endpoint:
        variables = {name: "" for name in os.environ if name.startswith("OTEL_")}
        arguments = ["interfaces.cli", "serve", options.model, "--store", "off"]
        off = {**variables, "CAIRN_TELEMETRY__ENABLED": "false"}
        on = {**variables, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
        sides = [
            Side(name, ServerProcess(arguments, "/health/ready", Path(folder) / f"{name}.log", environment=environment))
            for name, environment in {"on": on, "off": off}.items()
        ]
        with sides[0].server, sides[1].server, scraper(sides[0].server.url):
            for round in range(options.rounds + 1):
                for side in sides if round % 2 else sides[::-1]:
                    side.run(options.model, options.streams, options.tokens, round)
    for side in sides:  # the first round warms up
        del side.rates[0], side.token_cpu_s[0]
    on_side, off_side = sides
    figures = {
        "rate": paired(on_side.rates, off_side.rates),
        "cpu": paired(on_side.token_cpu_s, off_side.token_cpu_s),
        "rates": {side.name: statistics.median(side.rates) for side in sides},
        "token_cpu_ms": {side.name: statistics.median(side.token_cpu_s) * 1e3 for side in sides},
    }
    for name in ("rate", "cpu"):
        figure = figures[name]
        print(f"{name:5} on / off: {figure['ratio']:.4f} ({figure['from']:.4f}-{figure['to']:.4f})")
    print(f"tokens a second: {figures['rates']}; processor ms a token: {figures['token_cpu_ms']}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    return int(figures["rate"]["ratio"] < 1 - MOST)


if __name__ == "__main__":
    sys.exit(main())
