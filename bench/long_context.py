"""A long conversation over HTTP, on a model of real shape with random weights: what a client waits for.

    python -m bench.long_context [--shape qwen3-4b | --model DIR] [--words 3200] [--turns 3]
        [--without cancel kill alone] [--seconds 600] [--no-peer] [--dir DIR] [--json FILE]

One conversation at a time: a long first prompt (about eight tokens a word), the same once more, turns that each add a
reply and as many new words as a tool's result has, other users behind the same system prompt, the conversation going on
after a restart, another prompt as long after Cairn was killed two seconds behind its first token, and a third one after
it was cancelled at 60 %. Figures are milliseconds to the first token; the baseline is mlx_lm.server on the same weights
in the same run, for the steps after the first one `cold` of the same server, and for Cairn's turns and other users from
the second on computing alone, by turns with them (`bench.common.computing_alone`): as many tokens on as long a state by
a process that does nothing else. `share`: the part of the killed server's prompt that its store held. What is read
after a restart lies in the page cache, as far as that holds it.

A step that fails ends its server's conversation and not the other's; the status reports Cairn's too.
`--seconds` is for both servers: no step is begun that it does not allow. Answers are held to a few words (`wordy`): of
random weights most tokens show no text, and the first to show one would be taken for the first token. With `--json`
Cairn's log is kept as well: what waiting, prefill with restoring, and decode of each request took; and before each of
its ends, what its metrics add up to.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from bench.common.computing_alone import ComputingAlone
from bench.common.prefix_scenarios import chat
from bench.common.results import Results
from bench.common.servers import ServerProcess
from bench.http_client import Timeline, measure, words
from bench.model_folder import made

TURN_WORDS = 40
WARM_UP_WORDS = 600
"""Words of the first request of every process: some chunks, because kernels are compiled by shape."""
REPEATS = 3
KILLED_AFTER_S = 2.0
"""Seconds behind the first token: all of the prompt was computed before it."""
WRITTEN_AFTER_S = 8.0
STORE_QUOTA = "80%"
"""The default is a fifth of what is free, and a long prompt alone may take more."""
CAIRN, PEER = "cairn", "mlx_lm.server"

WORDY_IDS, WORDY_BIAS = 10, 100
"""Tokens an answer is made of, and what makes sure of it."""

Figures = tuple[float, int, int]


class TimeIsOver(Exception):
    """No further step is begun."""


class Conversation:
    """One server's figures. `figures`: by step, (ms to the first token, tokens of the prompt, tokens reused). `alone`:
    what takes turns with it."""

    def __init__(
        self,
        name: str,
        server: ServerProcess,
        options: argparse.Namespace,
        results: Results,
        is_beside_alone: bool,
    ) -> None:
        self._is_beside_alone = is_beside_alone
        self._name, self._server, self._results = name, server, results
        self._model, self._num_words, self._num_turns = str(options.model), options.words, options.turns
        self._bias: dict[str, int] = options.bias
        self._without: list[str] = options.without
        self._deadline_s: float = options.deadline_s
        self._messages: list[dict[str, str]] = []
        self.figures: dict[str, Figures] = {}

    def run(self) -> None:
        self._warm_up(900)
        self._messages = self._opening(1, self._num_words)
        self._turn("cold")
        self._repeats()
        self._series("turns", "turn", self._next_turn)
        self._series("other users", "other user", self._other_user)
        time.sleep(WRITTEN_AFTER_S)
        self._results.add("sums", server=self._name, sums=sums(self._server.url))
        self._server.stop()
        self._again()
        self._add_words(len(self._messages))
        self._turn("after restart")
        self._results.add("sums", server=self._name, sums=sums(self._server.url))
        if "kill" not in self._without and self._name == CAIRN:  # the other keeps nothing
            self._kill()
        if "cancel" not in self._without:
            self._cancel()

    def _series(self, kind: str, step: str, ask: Callable[[str, int], None]) -> None:
        """The same kind of request several times, by turns with computing alone."""
        alone = ComputingAlone(Path(self._model), self._results, self._deadline_s, kind)
        with alone if self._is_beside_alone else nullcontext():
            for number in range(self._num_turns):
                name = f"{step} {number + 2}"
                ask(name, number)
                if self._is_beside_alone:
                    alone.after(self.figures[name])
        if self._is_beside_alone:
            alone.tell()

    def _next_turn(self, name: str, number: int) -> None:
        self._add_words(number)
        self._turn(name)

    def _other_user(self, name: str, number: int) -> None:
        question = words(2000 + number, TURN_WORDS)
        self._ask(name, [self._messages[0], {"role": "user", "content": question}])

    def _repeats(self) -> None:
        prompt = self._messages[:2]
        found = [self._ask(None, prompt) for _ in range(REPEATS)]
        found.sort(key=lambda timeline: timeline.ttft_s)
        self._note("repeat", found[len(found) // 2])

    def _kill(self) -> None:
        """The store holds what it was given until shortly before."""
        lost = self._opening(3, self._num_words)
        first = self._ask("cold, to be killed", lost)
        time.sleep(max(0.0, first.first_token_s + KILLED_AFTER_S - time.monotonic()))
        queue = stats(self._server.url).get("queue")
        killed_s = time.monotonic()
        self._server.kill()
        self._again()
        (told,) = asked(f"{self._server.url}/v1/cache/explain", self._chat(lost)["body"])["prompts"]
        share = max(told["known_tokens"], told["store_tokens"]) / told["prompt_tokens"]
        self._results.add("stored", killed_after_s=killed_s - first.first_token_s, share=share, queue=queue, told=told)
        self._ask("after kill -9", lost)

    def _cancel(self) -> None:
        again = self._opening(2, self._num_words)
        self._ask(None, again, cancel_after_s=0.6 * self.figures["cold"][0] / 1e3)
        time.sleep(1)
        self._ask("after cancel at 60 %", again)

    def _again(self) -> None:
        started = time.monotonic()
        self._server.start()
        self._results.add("started", server=self._name, s=time.monotonic() - started)
        self._warm_up(901)

    def _warm_up(self, seed: int) -> None:
        self._ask(None, self._opening(seed, min(WARM_UP_WORDS, self._num_words)))

    def _opening(self, seed: int, num_words: int) -> list[dict[str, str]]:
        return [{"role": "system", "content": words(seed, num_words)}, {"role": "user", "content": f"About {seed}?"}]

    def _add_words(self, seed: int) -> None:
        self._messages.append({"role": "user", "content": words(1000 + seed, TURN_WORDS)})

    def _turn(self, name: str) -> None:
        reply = self._ask(name, self._messages).text
        self._messages.append({"role": "assistant", "content": reply})

    def _ask(self, name: str | None, messages: list[dict[str, str]], **options: float) -> Timeline:
        if time.monotonic() > self._deadline_s:
            raise TimeIsOver(f"{name or 'a step'} and what follows it is left out")
        timeline = measure(self._server.url, [self._chat(messages) | options])[0]
        if "cancel_after_s" not in options and (timeline.error or timeline.status != 200):
            raise RuntimeError(f"{name}: {timeline.status} {timeline.error}")
        if name is not None:
            self._note(name, timeline)
        return timeline

    def _chat(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        asked = chat(self._model, messages)
        return asked | {"body": asked["body"] | {"logit_bias": self._bias}}

    def _note(self, name: str, timeline: Timeline) -> None:
        figures = timeline.ttft_s * 1e3, timeline.num_prompt or 0, timeline.num_cached or 0
        self.figures[name] = figures
        over_cold = figures[0] / self.figures["cold"][0]
        named = dict(zip(("ttft_ms", "prompt_tokens", "reused_tokens"), figures, strict=True))
        self._results.add("step", server=self._name, step=name, over_cold=over_cold, **named)
        print(f"{name:>22} {figures[1]:>8,} tokens {figures[0]:>10,.0f} ms ({figures[2]:,})", flush=True)


def wordy(model: Path) -> dict[str, int]:
    """A `logit_bias` of whole words."""
    vocabulary = Tokenizer.from_file(str(model / "tokenizer.json"))
    shown = ((id, vocabulary.decode([id])) for id in range(vocabulary.get_vocab_size()))
    ids = [id for id, text in shown if text.strip().isalpha() and text.isascii()]
    return {str(id): WORDY_BIAS for id in ids[-WORDY_IDS:]}


def stats(url: str) -> dict[str, Any]:
    """Cairn's cache statistics; empty if the server is another, or does not answer."""
    try:
        return asked(f"{url}/v1/cache/stats")
    except (OSError, ValueError):
        return {}


def sums(url: str) -> dict[str, float]:
    """The sums of its metrics since it was started: seconds and bytes of restoring, storing and computing."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
    except (OSError, ValueError):
        return {}
    named = (line.rpartition(" ") for line in lines if line.startswith("cairn") and "_bucket" not in line)
    return {name: float(value) for name, _, value in named if value not in ("0", "0.0")}


def asked(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """A JSON answer. Raises OSError."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def compare(
    scratch: Path, options: argparse.Namespace, results: Results
) -> tuple[dict[str, dict[str, Figures]], dict[str, str]]:
    """Figures, and what failed, by server."""
    store = ["--store", str(scratch / "store"), "--store-quota", STORE_QUOTA]
    cairn = ["interfaces.cli", "serve", str(options.model), *store]
    peer = ["mlx_lm", "server", "--model", str(options.model), "--log-level", "ERROR"]
    servers = {CAIRN: ServerProcess(cairn, "/health/ready", scratch / f"{CAIRN}.log")}
    if not options.no_peer:
        servers[PEER] = ServerProcess(peer, "/health", scratch / f"{PEER}.log")
    figures: dict[str, dict[str, Figures]] = {}
    failures: dict[str, str] = {}
    for name, server in servers.items():
        print(f"== {name}", flush=True)
        is_beside_alone = name == CAIRN and "alone" not in options.without
        conversation = Conversation(name, server, options, results, is_beside_alone)
        figures[name] = conversation.figures
        started = time.monotonic()
        try:
            with server:
                results.add("started", server=name, s=time.monotonic() - started)
                conversation.run()
                results.add("stats", server=name, stats=stats(server.url))
                results.add("sums", server=name, sums=sums(server.url))
        except (RuntimeError, OSError, KeyError, subprocess.SubprocessError, TimeIsOver) as error:
            print(f"{name}: {error!r}", flush=True)
            failures[name] = f"{name}: {(str(error).strip() or repr(error)).splitlines()[-1]}"
            results.add("failed", server=name, error=repr(error))
        for line in (scratch / f"{name}.log").read_text(errors="replace").splitlines() if name == CAIRN else ():
            if " cairn." in line:
                results.add("log", line=line)
        free_gb = shutil.disk_usage(scratch).free / 1e9
        print(f"{free_gb:.1f} GB of disk are free", flush=True)
        turns = [figure[0] for step, figure in conversation.figures.items() if step.startswith("turn ")]
        if turns:
            results.add("turns", server=name, ttft_ms=statistics.median(turns), turns=len(turns))
    return figures, failures


def summarise(figures: dict[str, dict[str, Figures]], results: Results) -> None:
    """Cairn beside the peer, step by step."""
    for step, (ttft_ms, num_prompt, num_reused) in figures[CAIRN].items():
        peer = figures.get(PEER, {}).get(step)
        beside = "" if peer is None else f"{peer[0]:>14,.0f} ({peer[2]:,})   {ttft_ms / peer[0]:.2f}"
        print(f"{step:>22} {num_prompt:>8,} tokens {ttft_ms:>10,.0f} ms ({num_reused:,}){beside}")
        if peer is not None:
            results.add("beside", step=step, over_peer=ttft_ms / peer[0])


@contextmanager
def scratch_folder(parent: Path | None) -> Generator[Path]:
    """For weights and stores; gone afterwards."""
    scratch = Path(tempfile.mkdtemp(prefix="cairn-bench-", dir=parent))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3-4b", help="of bench.common.shapes")
    parser.add_argument("--model", type=Path, help="a folder that bench.model_folder made, instead of --shape")
    parser.add_argument("--words", type=int, default=3200)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--without", nargs="*", default=[], choices=["alone", "cancel", "kill"])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--dir", type=Path, help="for weights and stores; default: the temporary folder")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = Results(options.json, "long_context")
    options.deadline_s = time.monotonic() + options.seconds
    with scratch_folder(options.dir) as scratch:
        results.add("disk", free_GB=shutil.disk_usage(scratch).free / 1e9, quota=STORE_QUOTA)
        options.model = options.model or made(options.shape, scratch / "model")
        options.bias = wordy(options.model)
        figures, failures = compare(scratch, options, results)
        summarise(figures, results)
    if CAIRN in failures:
        raise SystemExit(failures[CAIRN])


if __name__ == "__main__":
    main()
