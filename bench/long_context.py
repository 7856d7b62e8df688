"""A long conversation over HTTP, on a model of real shape with random weights: what a client waits for.

    python -m bench.long_context [--shape qwen3-4b] [--words 3200] [--turns 3] [--no-peer] [--json FILE]

One conversation at a time: a long first prompt (about six tokens a word), turns that each add a reply and as many new
words as a tool's result has, another user behind the same system prompt, the first prompt again after it was cancelled
at 60 %, and the conversation going on after a restart and after kill -9. Figures are milliseconds to the first token;
the baseline is mlx_lm.server on the same weights in the same run.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.http_client import measure
from bench.prefix_scenarios import chat
from bench.servers import ServerProcess
from interfaces.cli.bench.prompts import words
from interfaces.cli.bench.timeline import Timeline

VOCABULARY = 4096
"""The embedded models' tokenizer is the one there is; the rest of the shape is the real one."""
TURN_WORDS = 40


class Conversation:
    """One server's figures. `figures`: by step, (ms to the first token, tokens of the prompt, tokens reused)."""

    def __init__(self, server: ServerProcess, model: str, num_words: int, num_turns: int) -> None:
        self._server = server
        self._model = model
        self._num_words = num_words
        self._num_turns = num_turns
        self._messages: list[dict[str, str]] = []
        self.figures: dict[str, tuple[float, int, int]] = {}

    def run(self) -> None:
        self._ask(None, self._opening(900, 20))  # the first request of a process compiles kernels
        self._messages = self._opening(1, self._num_words)
        self._turn("cold")
        for number in range(self._num_turns):
            self._add_words(number)
            self._turn(f"turn {number + 2}")
        other = [self._messages[0], {"role": "user", "content": "Somebody else asks."}]
        self._ask("other user", other)
        again = self._opening(2, self._num_words)
        self._ask(None, again, cancel_after_s=0.6 * self.figures["cold"][0] / 1e3)
        time.sleep(1)
        self._ask("after cancel at 60 %", again)
        for name, end in (("after restart", self._server.stop), ("after kill -9", self._server.kill)):
            time.sleep(8)  # for what is written behind
            end()
            self._server.start()
            self._ask(None, self._opening(901, 20))
            self._add_words(len(self._messages))
            self._turn(name)

    def _opening(self, seed: int, num_words: int) -> list[dict[str, str]]:
        return [{"role": "system", "content": words(seed, num_words)}, {"role": "user", "content": f"About {seed}?"}]

    def _add_words(self, seed: int) -> None:
        self._messages.append({"role": "user", "content": words(1000 + seed, TURN_WORDS)})

    def _turn(self, name: str) -> None:
        reply = self._ask(name, self._messages).text
        self._messages.append({"role": "assistant", "content": reply})

    def _ask(self, name: str | None, messages: list[dict[str, str]], **options: float) -> Timeline:
        timeline = measure(self._server.url, [chat(self._model, messages) | options])[0]
        if "cancel_after_s" not in options and (timeline.error or timeline.status != 200):
            raise RuntimeError(f"{name}: {timeline.status} {timeline.error}")
        if name is not None:
            details = timeline.usage.get("prompt_tokens_details") or {}
            figures = (timeline.ttft_s * 1e3, timeline.usage["prompt_tokens"], details.get("cached_tokens", 0))
            self.figures[name] = figures
            print(name, *figures, flush=True)
        return timeline


def compare(model: Path, scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    cairn = ["interfaces.cli", "serve", str(model), "--store", str(scratch / "store")]
    peer = ["mlx_lm", "server", "--model", str(model), "--log-level", "ERROR"]
    servers = {"cairn": ServerProcess(cairn, "/health/ready", scratch / "cairn.log")}
    if not options.no_peer:
        servers["mlx_lm.server"] = ServerProcess(peer, "/health", scratch / "peer.log")
    results: dict[str, Any] = {}
    for name, server in servers.items():
        print(f"== {name}", flush=True)
        conversation = Conversation(server, str(model), options.words, options.turns)
        with server:
            conversation.run()
        results[name] = conversation.figures
    return results


def write(shape: str, folder: Path) -> None:
    import mlx.core as mx

    from bench.long_context_models import write_model
    from bench.shapes import build_shape

    network, config = build_shape(shape, vocab_size=VOCABULARY)
    write_model(network, config, folder)
    mx.synchronize()
    mx.clear_streams()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3-4b", help="of bench.shapes")
    parser.add_argument("--words", type=int, default=3200)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--dir", type=Path, help="for weights and stores; default: the temporary folder")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        write(options.shape, options.write)
        return
    scratch = Path(tempfile.mkdtemp(prefix="cairn-bench-", dir=options.dir))
    try:
        # Weights are made by a process of its own, so that nothing here holds the device.
        arguments = ["--shape", options.shape, "--write", str(scratch / "model")]
        subprocess.run([sys.executable, "-m", "bench.long_context", *arguments], check=True)
        results = compare(scratch / "model", scratch, options)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    for step, (ttft_ms, num_prompt, num_reused) in results["cairn"].items():
        peer = results.get("mlx_lm.server", {}).get(step)
        beside = "" if peer is None else f"{peer[0]:>14,.0f} ({peer[2]:,})   {ttft_ms / peer[0]:.2f}"
        print(f"{step:>22} {num_prompt:>8,} tokens {ttft_ms:>10,.0f} ms ({num_reused:,}){beside}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
