"""The load generator of `cairn bench` in a process of its own, so that it shares no interpreter with the server that it
measures: when each token arrived, on the machine-wide monotonic clock.

`python -m bench.http_client URL` reads a JSON list of requests from standard input, starts each at its own offset, and
writes a JSON list of timelines.
"""

import asyncio
import json
import sys
from dataclasses import asdict
from typing import Any

from interfaces.cli.bench.client import Timeline, new_client, stream


async def run_all(base_url: str, requests: list[dict[str, Any]]) -> list[Timeline]:
    """Each request: {"path", "body", "at_s" (offset), "cancel_after_s"}."""

    async with new_client(None, is_local=True) as client:
        await client.get(base_url + "/health")  # the first request of a process imports and connects

        async def one(request: dict[str, Any]) -> Timeline:
            await asyncio.sleep(request.get("at_s", 0.0))
            return await stream(client, base_url + request["path"], request["body"], request.get("cancel_after_s"))

        return list(await asyncio.gather(*(one(request) for request in requests)))


def measure(base_url: str, requests: list[dict[str, Any]]) -> list[Timeline]:
    """Run the requests from a process of its own."""
    import subprocess

    done = subprocess.run(
        [sys.executable, "-m", "bench.http_client", base_url],
        input=json.dumps(requests).encode(),
        stdout=subprocess.PIPE,
        check=True,
        timeout=1200,
    )
    return [Timeline(**timeline) for timeline in json.loads(done.stdout)]


if __name__ == "__main__":
    timelines = asyncio.run(run_all(sys.argv[1], json.load(sys.stdin)))
    json.dump([asdict(timeline) for timeline in timelines], sys.stdout)
