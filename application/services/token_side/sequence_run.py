"""One sequence on its way through the engine: what happens to it in each phase, and what is told of it.

    waiting ──admit──► restoring ──restore──► prefilling ──prefill──► decoding ──take──► ended
                       (prefix cache at work)

Every method may raise; the step runner turns that into the end of this sequence alone. Compute thread only.
"""

from dataclasses import dataclass

from application.events import (
    DecodeStarted,
    FirstToken,
    PrefillChunkComputed,
    RequestAdmitted,
    RequestEnded,
    RequestQueued,
)
from application.ports.compute import DecodeResult, DecodeStart, LoadedModel
from application.ports.tokenizer import Detokenizer, EncodedPrompt
from application.services.prefix.cache import PrefixCache
from application.services.prefix.sequence_cache import SequenceCache
from application.services.text_side.output_pipeline import OutputPipeline
from application.services.token_side.outlet import Outlet
from domain.errors import ServerUnavailable
from domain.ids import ModelId, SequenceId
from domain.request import GenerationRequest, Usage
from domain.scheduling import PrefillChunk, SequenceView
from domain.sequence import Phase, Sequence
from domain.stream import Admitted, Failed, Finished, PrefillProgress

CLOSE_TRIES = 2
"""A state that could not be closed is closed once more: what is left of it otherwise stays until its model goes."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A request whose prompt is encoded and checked. `seed` is always set. `eos_token_ids`: all that end an answer."""

    request: GenerationRequest
    prompt: EncodedPrompt
    max_new_tokens: int
    seed: int
    detokenizer: Detokenizer
    model: ModelId
    eos_token_ids: frozenset[int]


class SequenceRun:
    """`model` is None when it was unloaded before the sequence came; admission then fails."""

    def __init__(self, id: SequenceId, submission: Submission, model: LoadedModel | None, outlet: Outlet) -> None:
        request, prompt, eos = submission.request, submission.prompt, submission.eos_token_ids
        self.sequence = Sequence(id, request, prompt.token_ids, submission.max_new_tokens)
        self.submission = submission
        self.model = model
        self._outlet = outlet
        self._pipeline = OutputPipeline(submission.detokenizer, eos, request.stop, submission.max_new_tokens)
        self._cache: SequenceCache | None = None
        self._has_state = False
        outlet.emit(RequestQueued(request, submission.model, len(prompt.token_ids), outlet.now_ns()))

    @property
    def id(self) -> SequenceId:
        return self.sequence.id

    @property
    def phase(self) -> Phase:
        return self.sequence.phase

    def view(self) -> SequenceView:
        """What the planner sees."""
        sequence = self.sequence
        stops = self._cache.stops if self._cache is not None else ()
        return SequenceView(sequence.id, sequence.phase, sequence.num_computed, len(sequence.prompt_ids), stops)

    def usage(self) -> Usage:
        reused = self._cache.explanation if self._cache is not None else None
        num_prompt, num_output = len(self.sequence.prompt_ids), len(self.sequence.output_ids)
        if reused is None or self.phase is Phase.QUEUED:
            return Usage(num_prompt, num_output)
        return Usage(num_prompt, num_output, reused.num_hot, reused.num_store)

    def look_up(self, prefix_cache: PrefixCache) -> None:
        """Look for a prefix, and begin to fetch what there is of it: in the queue, step by step, or on admission."""
        if self._cache is not None:
            self._cache.poll()
        else:
            submission, request = self.submission, self.sequence.request
            self._cache = prefix_cache.begin(
                self.id, request.id, submission.model, submission.prompt, request.cache_salt, persist=request.persist
            )

    def admit(self, prefix_cache: PrefixCache) -> None:
        """Open a state; it is restored as soon as its prefix has been fetched."""
        self.sequence.enter(Phase.RESTORING)
        model, self._has_state = self._loaded(), True
        model.open(self.id)
        self.look_up(prefix_cache)

    def try_restore(self) -> bool:
        """Restore once everything needed is here; False while it is not."""
        assert self._cache is not None
        if not self._cache.poll():
            return False
        self.sequence.num_computed = self._cache.restore(self._loaded())
        self.sequence.enter(Phase.PREFILLING)
        explanation, request = self._cache.explanation, self.sequence.request
        self._outlet.emit(RequestAdmitted(request.id, explanation.stopped_at, self._outlet.now_ns()))
        self._outlet.send(request.id, Admitted(explanation))
        return True

    def prefill(self, chunk: PrefillChunk) -> int:
        """Compute a chunk; the one that ends the prompt begins to decode. Returns the tokens computed."""
        assert self._cache is not None
        sequence, model, request = self.sequence, self._loaded(), self.sequence.request
        prompt, started = sequence.prompt_ids, self._outlet.now_ns()
        token_ids, is_last = prompt[chunk.start : chunk.end], chunk.end == len(prompt)
        if is_last:
            ends = self.submission.eos_token_ids
            start = DecodeStart(prompt, request.sampling, self.submission.seed, request.stop.min_tokens, ends)
            model.start_decode(self.id, token_ids, start)
        else:
            model.prefill(self.id, token_ids)
        now = self._outlet.now_ns()
        self._outlet.emit(PrefillChunkComputed(request.id, chunk.start, chunk.end, started, now))
        self._outlet.send(request.id, PrefillProgress(chunk.end, len(prompt)))
        sequence.num_computed = chunk.end
        # No later request resumes behind the last token but one. A state that cannot be cut stood there at a stop.
        if (reusable := min(chunk.end, len(prompt) - 1)) > chunk.start:
            self._cache.prefilled(model, reusable)
        if is_last:
            sequence.enter(Phase.DECODING)
            self._outlet.emit(DecodeStarted(request.id, self._outlet.now_ns()))
        return len(token_ids)

    def take(self, result: DecodeResult) -> Finished | None:
        """Take in a sampled token; returns how the sequence ends, if it does."""
        assert self._cache is not None
        request, output_ids = self.sequence.request, self.sequence.output_ids
        step = self._pipeline.feed(result.token_id, result.logprob)
        output_ids.append(result.token_id)
        if len(output_ids) == 1:
            self._outlet.emit(FirstToken(request.id, self._outlet.now_ns()))
        self._outlet.send(request.id, step.delta)
        if step.reason is not None:
            return Finished(step.reason, self.usage(), step.stop_text)
        self._cache.decoded(self._loaded(), output_ids)
        return None

    def end(self, phase: Phase, item: Finished | Failed) -> None:
        """The last thing that happens: keep what is worth keeping, release the state, tell everybody. What fails on the
        way is a fault, and changes nothing of how the sequence ended."""
        request, usage = self.sequence.request, self.usage()
        was_open = self.phase in (Phase.PREFILLING, Phase.DECODING)
        self.sequence.enter(phase)
        if was_open and phase is not Phase.FAILED:
            self._outlet.attempt("cache.end", self._keep)
        self.release()
        now = self._outlet.now_ns()
        if isinstance(item, Failed):
            self._outlet.emit(RequestEnded(request.id, "error", usage, now, item.error.code, item.error.message))
        else:
            self._outlet.emit(RequestEnded(request.id, item.reason.value, usage, now))
        self._outlet.send(request.id, item)

    def release(self) -> None:
        """Let go of the state and of everything pinned for it. Repeating it does nothing."""
        if self._cache is not None:
            self._outlet.attempt("cache.abandon", self._cache.abandon)
        for _ in range(CLOSE_TRIES):
            self._outlet.attempt("engine.close", self._close)

    def _keep(self) -> None:
        if self._cache is not None and self.model is not None:
            self._cache.end(self.model, self.sequence.output_ids)

    def _close(self) -> None:
        if self._has_state and self.model is not None:
            self.model.close([self.id])
        self._has_state = False

    def _loaded(self) -> LoadedModel:
        if self.model is None:
            raise ServerUnavailable(f"model {self.submission.model} was unloaded")
        return self.model


__all__ = ("SequenceRun", "Submission")
