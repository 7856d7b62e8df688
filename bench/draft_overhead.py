"""What speculation costs where nothing repeats: novel text with and without it, a few steps by turns, in one process.

    python -m bench.draft_overhead [--model cairn-demo] [--rows 1 4 8] [--blocks 60] [--json FILE]

Two groups of sequences draw text at temperature 1 from one model, of which only one may draft. They take turns of
STEPS decode steps, so both meet the same machine. Reported: milliseconds a token without drafts as a ratio to those
with them, the median of all turns (quartiles).
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from adapters.system.blas import load_blas

load_blas()

from adapters.huggingface.model_folder import embedded_folder  # noqa: E402 - a BLAS counts only before MLX
from adapters.mlx.engine import MlxEngine  # noqa: E402
from adapters.mlx.runtime.device import describe_device  # noqa: E402
from adapters.system.clock import SystemClock  # noqa: E402
from adapters.tokenizers.loader import HfTokenizerLoader  # noqa: E402
from application.ports.compute import DecodeStart, LoadedModel  # noqa: E402
from application.services.token_side.event_batcher import EventBatcher  # noqa: E402
from application.services.token_side.speculation import SequenceDrafts, Speculation  # noqa: E402
from bench.results import Results  # noqa: E402
from domain.id_row import IdRow  # noqa: E402
from domain.ids import ModelId, SequenceId  # noqa: E402
from domain.models.model_card import LoadOptions, ModelSource  # noqa: E402
from domain.prefix.prompt_content import EncodedPrompt  # noqa: E402
from domain.request.sampling import SamplingParams  # noqa: E402
from domain.scheduling.sequence import Sequence as TokenSequence  # noqa: E402
from tests.support.engines.finish_load import finish_load  # noqa: E402
from tests.support.engines.sync_engine import submission  # noqa: E402

STEPS, PROMPT_TOKENS, MOST_TOKENS = 16, 300, 1 << 20


class Group:
    """Sequences of one model that decode together. `first_id`: of their ids, which are also their seeds."""

    def __init__(self, model: LoadedModel, text: IdRow, num_rows: int, first_id: int, *, drafts: bool) -> None:
        self._model, self._speculation = model, Speculation(EventBatcher(SystemClock()))
        self._outputs: dict[SequenceId, list[int]] = {}
        self.rows: dict[SequenceId, SequenceDrafts | None] = {}
        for index in range(num_rows):
            id, prompt = SequenceId(first_id + index), text[37 * index : 37 * index + PROMPT_TOKENS]
            model.open(id)
            model.prefill(id, prompt[:-1])
            model.start_decode(id, prompt[-1:], DecodeStart(prompt, SamplingParams(temperature=1), seed=id))
            sequence = TokenSequence(id, prompt, MOST_TOKENS)
            asked = submission("bench", model.description.id, EncodedPrompt(prompt), MOST_TOKENS)
            self.rows[id] = SequenceDrafts(sequence, asked, model.description) if drafts else None
            self._outputs[id] = sequence.output_ids

    def ms_per_token(self) -> float:
        """Runs STEPS steps."""
        begun, num_tokens = time.perf_counter(), 0
        for _ in range(STEPS):
            for result in self._speculation.decode(self._model, self.rows):
                if result.error is not None:
                    raise result.error
                self._outputs[result.id] += result.token_ids
                num_tokens += len(result.token_ids)
        return 1e3 * (time.perf_counter() - begun) / num_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cairn-demo")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = Results(options.json, "draft_overhead", mlx_device=describe_device())
    path = embedded_folder(ModelId(options.model)) or Path(options.model)
    source = ModelSource(ModelId(options.model), str(path))
    text = HfTokenizerLoader().load(source).encode((path / "README.md").read_text(encoding="utf-8") * 4).token_ids
    with tempfile.TemporaryDirectory() as folder:
        engine = MlxEngine(Path(folder))
        model = finish_load(engine.load(source, LoadOptions()))
        for num_rows in options.rows:
            groups = [Group(model, text, num_rows, 100 * drafts, drafts=bool(drafts)) for drafts in (0, 1)]
            turns = [[group.ms_per_token() for group in groups] for _ in range(2 + options.blocks)][2:]
            low, middle, high = statistics.quantiles([plain / drafted for plain, drafted in turns])
            model.close([id for group in groups for id in group.rows])
            results.add("overhead", rows=num_rows, ratio=middle, low=low, high=high)
            print(f"{options.model} {num_rows} rows: {middle:.3f} of plain ({low:.3f} to {high:.3f})", flush=True)


if __name__ == "__main__":
    main()
