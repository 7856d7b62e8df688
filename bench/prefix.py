"""What reuse is worth to a client: time to first token, Cairn beside its peers, over HTTP, in one run.

    python -m bench.prefix [--models cairn-demo,cairn-demo-hybrid] [--words 240] [--vllm-mlx PYTHON] [--json FILE]

Figures are milliseconds to the first token (for the eight streams: until the last of them has its first token), with
the best peer's in the same run as the baseline. `reused` is what the server reports in usage.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapters.huggingface.embedded_models import embedded_folder
from adapters.system.blas import load_blas
from bench.float32 import float32_copy
from bench.http_client import Timeline, measure
from bench.serve import PLAIN_TEXT
from bench.servers import ServerProcess

REPLY_TOKENS = 16
LATTICE_WORDS = "amber birch cedar delta ember fjord grove heath inlet juniper knoll larch".split()  # noqa: SIM905


def words(seed: int, count: int) -> str:
    """Text that no two seeds share, of about six tokens a word."""
    return " ".join(f"{LATTICE_WORDS[(seed + i) % 12]} {seed * 7919 + i * 31}" for i in range(count))


def chat(model: str, messages: list[dict[str, str]]) -> dict[str, Any]:
    body = {
        "model": model,
        "messages": messages,
        "max_tokens": REPLY_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logit_bias": PLAIN_TEXT,
    }
    return {"path": "/v1/chat/completions", "body": body}


@dataclass
class Scenarios:
    """One server's figures on one model."""

    server: ServerProcess
    model: str
    count: int
    settle: Callable[[], None]
    figures: dict[str, float] = field(default_factory=dict)
    reused: dict[str, int] = field(default_factory=dict)

    def ask(self, *requests: dict[str, Any]) -> list[Timeline]:
        timelines = measure(self.server.url, list(requests))
        for request, timeline in zip(requests, timelines, strict=True):
            if "cancel_after_s" not in request and (timeline.error or timeline.status != 200):
                raise RuntimeError(f"{timeline.status} {timeline.error}")
        return timelines

    def note(self, name: str, *timelines: Timeline) -> None:
        self.figures[name] = statistics.median(timeline.ttft_s for timeline in timelines) * 1e3
        details = timelines[0].usage.get("prompt_tokens_details") or {}
        self.reused[name] = details.get("cached_tokens", 0)

    def dialogue(self, seed: int, count: int | None = None) -> list[dict[str, str]]:
        return [
            {"role": "system", "content": words(seed, count or self.count)},
            {"role": "user", "content": f"Say something about {seed}."},
        ]

    def one_dialogue(self) -> None:
        cold, repeat, turn, other = [], [], [], []
        for seed in (1, 2, 3):
            messages = self.dialogue(seed)
            cold += self.ask(chat(self.model, messages))
            repeat += self.ask(chat(self.model, messages))
            longer = [
                *messages,
                {"role": "assistant", "content": cold[-1].text},
                {"role": "user", "content": "And then?"},
            ]
            turn += self.ask(chat(self.model, longer))
            other += self.ask(chat(self.model, [messages[0], {"role": "user", "content": "Somebody else asks."}]))
        for name, timelines in (("cold", cold), ("repeat", repeat), ("next turn", turn), ("other user", other)):
            self.note(name, *timelines)

    def rotation(self) -> None:
        dialogues = [self.dialogue(100 + index, self.count // 3) for index in range(12)]
        replies = [self.ask(chat(self.model, messages))[0].text for messages in dialogues]
        second = []
        for messages, reply in zip(dialogues, replies, strict=True):
            turns = [{"role": "assistant", "content": reply}, {"role": "user", "content": "Go on."}]
            second += self.ask(chat(self.model, [*messages, *turns]))
        self.note("rotation of 12", *second)

    def shared(self) -> None:
        system = self.dialogue(200)[0]
        requests = [
            chat(self.model, [system, {"role": "user", "content": f"Client {index} asks this."}]) for index in range(8)
        ]
        timelines = self.ask(*requests)
        last = max(timeline.first_token_s for timeline in timelines) - min(timeline.sent_s for timeline in timelines)
        self.figures["8 share a prefix"] = last * 1e3
        self.reused["8 share a prefix"] = sum(
            (timeline.usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0) for timeline in timelines
        )

    def cancelled(self) -> None:
        messages = self.dialogue(300)
        self.ask(chat(self.model, messages) | {"cancel_after_s": self.figures["cold"] * 0.6 / 1e3})
        time.sleep(0.5)
        self.note("after cancel at 60%", *self.ask(chat(self.model, messages)))

    def restarted(self, *, kill: bool) -> None:
        name = "after kill -9" if kill else "after restart"
        messages = self.dialogue(401 if kill else 400)
        self.ask(chat(self.model, messages))
        self.settle()
        if kill:
            self.server.kill()
        else:
            self.server.stop()
        self.server.start()
        self.ask(chat(self.model, self.dialogue(500 + kill, 20)))  # the first request of a process compiles kernels
        self.note(name, *self.ask(chat(self.model, messages)))

    def run(self) -> "Scenarios":
        self.ask(chat(self.model, self.dialogue(900, 20)))
        self.one_dialogue()
        self.rotation()
        self.shared()
        self.cancelled()
        self.restarted(kill=False)
        self.restarted(kill=True)
        return self


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="cairn-demo,cairn-demo-hybrid")
    parser.add_argument("--words", type=int, default=240)
    parser.add_argument("--vllm-mlx", help="a Python that has vllm-mlx installed")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {model: compare(model, options.words, options.vllm_mlx) for model in options.models.split(",")}
    for model, by_server in results.items():
        print_table(model, by_server)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def compare(model: str, count: int, vllm_python: str | None) -> dict[str, Any]:
    """Each server alone on the machine, one after the other."""
    results: dict[str, Any] = {}
    blas = load_blas().path  # before anything here imports MLX
    copies = Path(tempfile.mkdtemp(prefix="cairn-bench-"))
    folder = str(float32_copy(embedded_folder(model) or Path(model), copies / "model"))
    for name, server, settle, scratch in servers(folder, blas, vllm_python):
        try:
            with server:
                done = Scenarios(server, folder, count, settle).run()
            results[name] = {"ms": done.figures, "reused": done.reused}
            print(f"{model}, {name}: {results[name]}", flush=True)
        except RuntimeError as error:
            results[name] = {"error": str(error)}
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    shutil.rmtree(copies)
    return results


def servers(
    folder: str, blas: str, vllm_python: str | None
) -> list[tuple[str, ServerProcess, Callable[[], None], Path]]:
    """(name, server, what to wait for before it is stopped, its scratch folder)."""
    preload = {"LD_PRELOAD": blas, "OPENBLAS_NUM_THREADS": "1"} if blas else {}
    found = []
    for name, store in (("cairn", True), ("cairn, no store", False)):
        scratch = Path(tempfile.mkdtemp(prefix="cairn-bench-"))
        arguments = ["interfaces.cli", "serve", folder, "--store", str(scratch / "store") if store else "off"]
        server = ServerProcess(arguments, "/health/ready", scratch / "log")
        found.append((name, server, lambda: time.sleep(2.0), scratch))
    scratch = Path(tempfile.mkdtemp(prefix="cairn-bench-"))
    arguments = ["mlx_lm", "server", "--model", folder, "--log-level", "ERROR", "--prompt-concurrency", "1"]
    peer = ServerProcess(arguments, "/health", scratch / "log", environment=preload)
    found.append(("mlx_lm.server", peer, lambda: None, scratch))
    if vllm_python:
        scratch = Path(tempfile.mkdtemp(prefix="cairn-bench-"))
        arguments = ["vllm_mlx.cli", "serve", folder, "--offline", "--continuous-batching"]
        environment = preload | {"HOME": str(scratch)}
        peer = ServerProcess(arguments, "/health", scratch / "log", python=vllm_python, environment=environment)
        found.append(("vllm-mlx", peer, lambda: None, scratch))
    return found


def print_table(model: str, by_server: dict[str, Any]) -> None:
    """Rows are scenarios; the last column is Cairn against the best peer."""
    peers = [name for name in by_server if not name.startswith("cairn") and "ms" in by_server[name]]
    names = [name for name in by_server if "ms" in by_server[name]]
    print(f"\n{model}: ms to the first token (tokens reused)")
    print(f"{'':>20}" + "".join(f"{name:>24}" for name in names) + f"{'cairn / best peer':>20}")
    for scenario in by_server["cairn"]["ms"]:
        cells = [
            f"{by_server[name]['ms'][scenario]:.0f} ({by_server[name]['reused'].get(scenario, 0)})" for name in names
        ]
        best = min((by_server[name]["ms"][scenario] for name in peers), default=float("nan"))
        ratio = by_server["cairn"]["ms"][scenario] / best
        print(f"{scenario:>20}" + "".join(f"{cell:>24}" for cell in cells) + f"{ratio:>20.2f}")
    for name, result in by_server.items():
        if "error" in result:
            print(f"{name}: {result['error']}")


if __name__ == "__main__":
    main()
