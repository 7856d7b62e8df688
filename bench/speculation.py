"""Speculation: what drafts save, paired with plain decoding in one run.

    python -m bench.speculation served [--model cairn-demo] [--rounds 5] [--streams 1 4 8] [--json FILE]
    python -m bench.speculation scripted [--shape qwen3-4b | --model DIR] [--context 2000] [--rows 1 4 8] [--json FILE]

`served`: one server over HTTP; each request is sent with `speculation` true and false by turns. A rewrite is held to
1,000 tokens (256 where several streams run) of a file with five edits by a grammar of token ids, because the embedded
models cannot copy that much; novel text is drawn at temperature 1. Reported: tokens a second as a ratio to
`speculation: false` (the median of the rounds), and the time to the first token likewise (the geometric mean).

`scripted`: no server; a drafter that is right about 70 % of its tokens, through the decision that the server takes. The
answers are held to a script, so that acceptance does not depend on near-ties. Reported: the costs of widths that the
load measured, and milliseconds a token as a ratio to plain decoding, at each number of rows.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from adapters.system.blas import load_blas

load_blas()

from adapters.fake.environment import FakeClock  # noqa: E402 - a BLAS counts only before MLX
from adapters.huggingface.model_folder import embedded_folder  # noqa: E402
from adapters.mlx.engine import MlxEngine  # noqa: E402
from adapters.mlx.runtime.device import describe_device  # noqa: E402
from adapters.tokenizers.loader import HfTokenizerLoader  # noqa: E402
from application.ports.compute import DecodeStart, LoadedModel  # noqa: E402
from application.ports.token_constraint import AllowedTokens  # noqa: E402
from application.services.token_side.event_batcher import EventBatcher  # noqa: E402
from application.services.token_side.speculation import SequenceDrafts, Speculation  # noqa: E402
from bench.common.results import Results  # noqa: E402
from bench.common.servers import ServerProcess  # noqa: E402
from bench.http_client import Timeline, measure  # noqa: E402
from bench.model_folder import made  # noqa: E402
from domain.id_row import IdRow  # noqa: E402
from domain.ids import ModelId, SequenceId  # noqa: E402
from domain.models.model_card import LoadOptions, ModelSource  # noqa: E402
from domain.prefix.prompt_content import EncodedPrompt  # noqa: E402
from domain.request.sampling import SamplingParams  # noqa: E402
from domain.scheduling.sequence import Sequence as TokenSequence  # noqa: E402
from domain.speculation.drafter import Drafter  # noqa: E402
from domain.speculation.gain import MOST_ROWS, WIDTHS  # noqa: E402
from domain.speculation.lookup import Proposal  # noqa: E402
from tests.support.engines.finish_load import finish_load  # noqa: E402
from tests.support.engines.sync_engine import submission  # noqa: E402

FILE_TOKENS, SHORT_TOKENS, NUM_EDITS = 1000, 256, 5
NOVEL_TOKENS = 256
RIGHT = 0.7
CHUNK = 512


# ---- served --------------------------------------------------------------------------------------------------------


class Served:
    """One server, asked with and without drafts by turns."""

    def __init__(self, url: str, model: str, results: Results) -> None:
        self._url, self._model, self._results = url, model, results
        folder = embedded_folder(ModelId(model)) or model
        self._tokenizer = HfTokenizerLoader().load(ModelSource(ModelId(model), str(folder)))
        text = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
        self._file = list(self._tokenizer.encode(text).token_ids)[:FILE_TOKENS]

    def compare(self, name: str, body: Callable[[int, int], dict[str, Any]], num_streams: int, num_rounds: int) -> None:
        """Sends the requests of each round with drafts and without. `body`: by round and stream."""
        speeds: list[float] = []
        waits: list[float] = []
        accepted = steps = 0
        for number in range(-1, num_rounds):  # the first one compiles kernels and fills the prefix cache
            found: dict[bool, list[Timeline]] = {}
            for drafts in (True, False) if number % 2 else (False, True):
                requests = [
                    {"path": "/v1/completions", "body": self._body(body(number, stream), drafts)}
                    for stream in range(num_streams)
                ]
                found[drafts] = measure(self._url, requests)
                if failed := next((one for one in found[drafts] if one.error), None):
                    raise RuntimeError(f"{name}: {failed.error}")
            if [one.text for one in found[True]] != [one.text for one in found[False]]:
                self._results.add("differs", case=name, round=number)
                print(f"{name}: the texts of round {number} differ", flush=True)
            if number >= 0:
                speeds.append(_rate(found[True]) / _rate(found[False]))
                waits.append(_mean_ttft_s(found[True]) / _mean_ttft_s(found[False]))
                accepted += sum(_accepted(one) for one in found[True])
                steps += sum(one.num_output or 0 for one in found[True])
        figures = {
            "speed": statistics.median(speeds),
            "lowest": min(speeds),
            "highest": max(speeds),
            "ttft": statistics.geometric_mean(waits),  # the second of a round finds the grammar compiled
            "accepted_share": accepted / max(1, steps),
        }
        self._results.add("served", case=name, model=self._model, streams=num_streams, rounds=len(speeds), **figures)
        print(
            f"{self._model} {name:16s} {num_streams} streams: {figures['speed']:.2f} of plain"
            f" ({figures['lowest']:.2f} to {figures['highest']:.2f}), time to first token {figures['ttft']:.2f},"
            f" {figures['accepted_share']:.0%} of the tokens were drafted; {len(speeds)} rounds",
            flush=True,
        )

    def rewrite(self, number: int, stream: int, num_tokens: int) -> dict[str, Any]:
        """The beginning of the file once more, with NUM_EDITS tokens replaced."""
        chance = random.Random(f"{number} {stream}")
        edited = self._file[:num_tokens]
        for place in chance.sample(range(20, num_tokens - 20), NUM_EDITS):
            edited[place] = chance.choice(self._file)
        script = " ".join(f"<[{token}]>" for token in edited)
        return {"prompt": self._file, "max_tokens": num_tokens, "structured_outputs": {"grammar": f"start: {script}"}}

    def novel(self, number: int, stream: int) -> dict[str, Any]:
        start = 37 * stream
        return {
            "prompt": self._file[start : start + 300],
            "max_tokens": NOVEL_TOKENS,
            "temperature": 1.0,
            "seed": 1000 * number + stream,
            "ignore_eos": True,
        }

    def _body(self, body: dict[str, Any], drafts: bool) -> dict[str, Any]:
        common = {"model": self._model, "stream": True, "stream_options": {"include_usage": True}}
        return {"temperature": 0, **common, **body, "speculation": drafts}


def _rate(timelines: Sequence[Timeline]) -> float:
    """Tokens a second of all streams, from the first token of the first to the end of the last."""
    num_tokens = sum((one.num_output or 0) - 1 for one in timelines)
    return num_tokens / (max(one.end_s for one in timelines) - min(one.first_token_s for one in timelines))


def _mean_ttft_s(timelines: Sequence[Timeline]) -> float:
    return statistics.mean(one.ttft_s for one in timelines)


def _accepted(timeline: Timeline) -> int:
    details = timeline.usage.get("completion_tokens_details") or {}
    return int(details.get("accepted_prediction_tokens") or 0)


def serve(options: argparse.Namespace, results: Results) -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess(
            ["cairn", "serve", options.model, "--store", str(Path(folder) / "store")],
            "/health",
            Path(folder) / "server.log",
        )
        with server:
            served = Served(server.url, options.model, results)
            for num_streams in options.streams:
                rewrite = partial(served.rewrite, num_tokens=FILE_TOKENS if num_streams == 1 else SHORT_TOKENS)
                served.compare("rewrite", rewrite, num_streams, options.rounds)
                served.compare("novel text", served.novel, num_streams, options.rounds)


# ---- scripted ------------------------------------------------------------------------------------------------------


class Script:
    """A constraint that allows the tokens of a script, one after the other."""

    def __init__(self, token_ids: Sequence[int], vocab_size: int) -> None:
        self._token_ids, self._num_bytes, self._next = token_ids, -(-vocab_size // 8), 0
        self._allowed: AllowedTokens | None = None

    def poll(self) -> bool:
        return True

    def allowed(self) -> AllowedTokens:
        if self._allowed is None:
            mask = bytearray(self._num_bytes)
            token = self._token_ids[self._next]
            mask[token // 8] = 1 << token % 8
            self._allowed = AllowedTokens(bytes(mask))
        return self._allowed

    def accept(self, token_id: int) -> None:
        self._next, self._allowed = self._next + 1, None


class ScriptedDrafts(SequenceDrafts):
    """Drafts of a known answer, each token of which is right with a probability of RIGHT."""

    def __init__(
        self, sequence: TokenSequence, model: LoadedModel, answer: Sequence[int], chance: random.Random
    ) -> None:
        asked = submission("bench", model.description.id, EncodedPrompt(IdRow([1])), len(answer))
        super().__init__(sequence, asked, model.description)
        self._output_ids, self._answer, self._chance = sequence.output_ids, answer, chance
        self._size = model.description.vocab_size

    def look_up(self, depth: int) -> Proposal | None:
        done = len(self._output_ids)
        following = self._answer[done : done + 1 + depth]
        guesses = [token if self._chance.random() < RIGHT else (token + 1) % self._size for token in following[1:]]
        return Proposal((*following[:1], *guesses), Drafter.NGRAM, RIGHT)


class Scripted:
    """One loaded model."""

    def __init__(self, model: LoadedModel, context: int, results: Results) -> None:
        self._model, self._context, self._results = model, context, results
        self._next_id, self._chance = 0, random.Random(1)
        self._speculation = Speculation(EventBatcher(FakeClock()))

    def run(self, num_rows: int, num_tokens: int, num_rounds: int) -> None:
        ratios: list[float] = []
        taken: dict[bool, list[float]] = {True: [], False: []}
        for number in range(-1, num_rounds):
            found = {drafts: self._round(num_rows, num_tokens, drafts) for drafts in (number % 2 == 0, number % 2 == 1)}
            if number >= 0:
                ratios.append(found[False] / found[True])
                for drafts, seconds in found.items():
                    taken[drafts].append(seconds)
        plain_ms, drafted_ms = (1e3 * statistics.median(taken[drafts]) for drafts in (False, True))
        speed = statistics.median(ratios)
        self._results.add("scripted", rows=num_rows, plain_ms=plain_ms, drafted_ms=drafted_ms, speed=speed)
        print(
            f"{num_rows} rows: {plain_ms:.2f} ms a token plain, {drafted_ms:.2f} with drafts,"
            f" {speed:.2f} times as fast ({min(ratios):.2f} to {max(ratios):.2f})",
            flush=True,
        )

    def _round(self, num_rows: int, num_tokens: int, drafts: bool) -> float:
        """Returns seconds a token and row."""
        size = self._model.description.vocab_size
        rows: dict[SequenceId, SequenceDrafts | None] = {}
        outputs: dict[SequenceId, list[int]] = {}
        for _ in range(num_rows):
            answer = [self._chance.randrange(size) for _ in range(num_tokens + 40)]
            id = self._begin(answer)
            sequence = TokenSequence(id, IdRow([1]), len(answer))
            rows[id] = ScriptedDrafts(sequence, self._model, answer, self._chance) if drafts else None
            outputs[id] = sequence.output_ids
        for _ in range(4):
            self._step(rows, outputs)
        started, before = time.perf_counter(), sum(map(len, outputs.values()))
        while min(map(len, outputs.values())) < num_tokens:
            self._step(rows, outputs)
        seconds = time.perf_counter() - started
        self._model.close(list(rows))
        return seconds * num_rows / (sum(map(len, outputs.values())) - before)

    def _step(self, rows: dict[SequenceId, SequenceDrafts | None], outputs: dict[SequenceId, list[int]]) -> None:
        for result in self._speculation.decode_model(self._model, rows):
            if result.error is not None:
                raise result.error
            outputs[result.id] += result.token_ids

    def _begin(self, answer: Sequence[int]) -> SequenceId:
        id, size = SequenceId(self._next_id), self._model.description.vocab_size
        self._next_id += 1
        prompt = [self._chance.randrange(size) for _ in range(self._context + self._chance.randrange(8))]
        self._model.open(id)
        for start in range(0, len(prompt) - 1, CHUNK):
            self._model.prefill(id, prompt[start : min(start + CHUNK, len(prompt) - 1)])
        held = DecodeStart(IdRow(prompt), SamplingParams(temperature=0), seed=0, constraint=Script(answer, size))
        self._model.start_decode(id, prompt[-1:], held)
        return id


def scripted(options: argparse.Namespace, results: Results) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(options.model) if options.model else made(options.shape, Path(folder) / "model")
        engine = MlxEngine(Path(folder))  # which measures the costs of widths
        model = finish_load(engine.load(ModelSource(ModelId("bench"), str(path)), LoadOptions()))
        costs = model.description.width_costs
        if costs is None:
            raise SystemExit("this model verifies no drafts")
        for num_rows, pass_ms in zip((1, MOST_ROWS), costs.pass_ms, strict=False):
            by_width = {width: round(cost, 2) for width, cost in zip(WIDTHS, pass_ms, strict=False)}
            results.add("costs", rows=num_rows, refeeds=costs.refeeds, pass_ms=by_width)
            print(f"{num_rows} rows, ms by width: {by_width}", flush=True)
        bench = Scripted(model, options.context, results)
        for num_rows in options.rows:
            bench.run(num_rows, options.tokens, options.rounds)
        engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("served", "scripted"))
    parser.add_argument("--model", default="", help="served: an embedded model or a folder; scripted: a folder")
    parser.add_argument("--shape", default="qwen3-4b")
    parser.add_argument("--context", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = Results(options.json, "speculation", mlx_device=describe_device())
    if options.kind == "served":
        options.model = options.model or "cairn-demo"
        serve(options, results)
    else:
        scripted(options, results)


if __name__ == "__main__":
    main()
