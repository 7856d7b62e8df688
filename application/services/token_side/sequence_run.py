"""One choice of a submission in the engine: the work of each phase, and the items it sends.

    waiting ──admit──► restoring ──restore──► prefilling ──prefill──► decoding ──take──► ended (or with its prompt)
         ▲             (prefix cache at work)                            │
         └──preempt──────────────────────────────────────────────────────┘

A preempted sequence loses its state, not its output: it continues as a prompt of its prompt and its output. A choice
that comes from an engine that was lost begins like a preempted one.

Every method may raise; the engine loop turns that into the end of this sequence alone. Compute thread only.
"""

from functools import partial
from typing import Any

from application.events import DecodeStarted, FirstToken, PrefillChunkComputed, RequestAdmitted, RequestPreempted
from application.ports.compute import DecodeResult, DecodeStart, Images, LoadedModel, PromptScores
from application.ports.engine import Ended, Submission, Tokens
from application.services.prefix.cache import PrefixCache
from application.services.prefix.no_reuse import NoReuse
from application.services.prefix.session import PrefixSession
from application.services.token_side.constraints import AnswerConstraint
from application.services.token_side.event_batcher import EventBatcher
from application.services.token_side.images import EngineImages, SequenceImages
from application.services.token_side.memory_guard import MemoryGuard
from application.services.token_side.speculation import SequenceDrafts
from domain.chunking import PLAIN
from domain.errors import MemoryBusy, ServerUnavailable
from domain.id_row import IdRow
from domain.ids import SequenceId
from domain.memory.shape import MemoryShape
from domain.prefix.explanation import Explanation, StopReason
from domain.request.request import FinishReason, Usage, choice_id, choice_seed
from domain.request.stream import Admitted, PrefillProgress, PromptLogprobs
from domain.scheduling.sequence import Phase, Sequence
from domain.scheduling.step_values import (
    DecodingView,
    PrefillChunk,
    PrefillingView,
    PromptView,
    RestoringView,
    SequenceView,
    WaitingView,
)
from domain.speculation.gain import WIDTHS

CLOSE_TRIES = 2
"""A state that could not be closed is closed once more; otherwise it stays until its model is unloaded."""


class SequenceRun:
    """A sequence in the engine. `constraint`: allows its tokens; None allows all. `cache`: reuses nothing until the
    sequence is queued. `charge_bytes`, `num_waited`: as in SequenceView. `drafts`: from the end of the prompt on; None
    if it does not speculate. `images`: of the prompt."""

    def __init__(
        self,
        id: SequenceId,
        submission: Submission,
        choice: int,
        images: EngineImages,
        *,
        model: LoadedModel | None,
        batcher: EventBatcher,
    ) -> None:
        """`model`: None when it was unloaded before the submission arrived; admission then fails."""
        resumed = submission.resumed[choice] if submission.resumed else None
        self._was_resumed = resumed is not None and resumed.has_left_queue
        self.sequence = Sequence(
            id,
            submission.prompt.token_ids,
            submission.max_new_tokens,
            Phase.PREEMPTED if self._was_resumed else Phase.QUEUED,
            output_ids=list(resumed.output_ids) if resumed is not None else [],
        )
        self.submission = submission
        self.choice = choice
        self.request_id = choice_id(submission.id, choice)
        self.constraint: AnswerConstraint | None = None
        self.drafts: SequenceDrafts | None = None
        self.charge_bytes = self.num_waited = 0
        self._num_reported = resumed.num_prompt_done if resumed is not None else 0  # prompt tokens, as progress
        self._explanation = resumed.explanation if resumed is not None else None
        self._send = partial(batcher.send, submission.id, choice)  # a bound method would be a reference cycle
        self._model = model
        self._batcher = batcher
        self.cache: PrefixSession | NoReuse = NoReuse(
            Explanation(len(submission.prompt.token_ids), StopReason.DISABLED)
        )
        self._has_state = False
        self.images = SequenceImages(images, submission, id, self.request_id, self._send)

    @property
    def id(self) -> SequenceId:
        return self.sequence.id

    @property
    def phase(self) -> Phase:
        return self.sequence.phase

    def shape(self) -> MemoryShape | None:
        """Returns the memory shape of its model; None when that was unloaded."""
        return self._model.description.memory if self._model is not None else None

    def view(self) -> SequenceView:
        """Returns the planner's view."""
        sequence = self.sequence
        charge: dict[str, Any] = {
            "charge_bytes": self.charge_bytes,
            "priority": self.submission.priority,
            "num_waited": self.num_waited,
            "num_preempted": sequence.num_preempted,
        }
        if sequence.phase is Phase.DECODING:
            width = 1 if self.drafts is None else WIDTHS[-1]
            return DecodingView(self.id, num_computed=sequence.position, width=width, **charge)
        view = self._prompt_view(
            charge | {"num_prompt": len(sequence.fed_ids), "is_scored": self._num_scored_tops() is not None}
        )
        return self.images.added_to(view, self._model) if self.submission.prompt.media else view

    def _prompt_view(self, facts: dict[str, Any]) -> PromptView:
        cache = self.cache
        if self.phase is Phase.PREFILLING:
            chunking = self._model.description.chunking if self._model is not None else PLAIN
            num_computed = self.sequence.num_computed
            return PrefillingView(self.id, num_computed=num_computed, stops=cache.stops, chunking=chunking, **facts)
        if self.phase is Phase.RESTORING:
            is_held = not self._is_compiled() or cache.is_waiting
            return RestoringView(self.id, takes_over=cache.takes_over, is_held=is_held, **facts)
        return WaitingView(
            self.id,
            is_preempted=self.phase is Phase.PREEMPTED,
            is_looked_up=cache.is_looked_up,
            takes_over=cache.takes_over,
            follows=cache.follows,
            next_block=cache.next_block,
            **facts,
        )

    def usage(self) -> Usage:
        """Returns the token counts without those of drafts, which go out with the tokens."""
        num_output = len(self.sequence.output_ids)
        if self._explanation is None:
            return Usage(self.submission.num_prompt_tokens, num_output)
        return Usage.of(self._explanation, num_output)

    def charge(self, guard: MemoryGuard) -> None:
        """Counts what it will hold at its longest; when it arrives and after each preemption."""
        if (shape := self.shape()) is not None:
            num_new = self.submission.max_new_tokens - len(self.sequence.output_ids)
            self.charge_bytes = guard.charge_bytes(shape, len(self.sequence.fed_ids), num_new)

    # ---- waiting ------------------------------------------------------------------------------------------------

    def queue_up(self, prefix_cache: PrefixCache) -> None:
        """Waits for admission."""
        asked, sequence = self.submission, self.sequence
        resumed = sequence.fed_ids[len(sequence.prompt_ids) :]
        self.cache = prefix_cache.begin(
            self.id,
            self.request_id,
            asked.model,
            asked.prompt.followed_by(resumed) if resumed else asked.prompt,
            asked.cache_salt,
            persist=asked.persist,
            restores=self._num_scored_tops() is None,
        )

    def look_ahead(self) -> bool:
        """Fetches the prefix of a sequence near the head of the queue, step by step. Returns True when the lookup was
        completed by this call."""
        cache = self.cache
        was_looked_up = cache.is_looked_up
        cache.prepare(ahead=True)
        cache.poll()
        return cache.is_looked_up and not was_looked_up

    def admit(self) -> None:
        """Opens a state, which is restored as soon as its prefix has been fetched."""
        if self.phase is Phase.QUEUED:
            self._batcher.left_queue()
        self.sequence.enter(Phase.RESTORING)
        self._has_state = self._model is not None  # from here on there may be one to close
        self._loaded().open(self.id)
        if media := self.submission.prompt.media:
            self._loaded().set_media(self.id, media)
        self.cache.prepare()
        self._batcher.emit(RequestAdmitted(self.request_id, self._batcher.now_ns()))

    # ---- computing ----------------------------------------------------------------------------------------------

    def try_restore(self) -> bool:
        """Restores the state once its prefix has arrived and its grammar is compiled; returns False until then."""
        cache = self.cache
        if not cache.poll() or not self._is_compiled():
            return False
        self.sequence.num_computed = cache.restore(self._loaded())
        self.sequence.enter(Phase.PREFILLING)
        self._begin_prompt(cache.explanation)
        return True

    def prefill(self, chunk: PrefillChunk) -> int:
        """Computes a chunk; decoding begins with the one that ends the prompt, if a token is wanted. Returns the number
        of tokens computed."""
        sequence, model = self.sequence, self._loaded()
        fed, started = sequence.fed_ids, self._batcher.now_ns()
        starts_decode = chunk.end == len(fed) and sequence.max_new_tokens > 0
        images = self.images.chunk_features(model, chunk.start, chunk.end)
        scores = self._compute(model, fed[chunk.start : chunk.end], images, starts_decode=starts_decode)
        self._emit_chunk(chunk.start, chunk.end, started, is_resumed=self._was_resumed or sequence.num_preempted > 0)
        self._report_progress(chunk, scores)
        self.cache.paced(chunk.end - chunk.start, self._batcher.now_ns() - started)
        sequence.num_computed = chunk.end
        self.images.move_to(chunk.end)
        # No later request resumes behind the last token but one. A state that cannot be cut stood there at a stop.
        if (reusable := min(chunk.end, len(fed) - 1)) > chunk.start:
            self.cache.prefilled(model, reusable)
        if starts_decode:
            sequence.enter(Phase.DECODING)
            if self.submission.speculates and model.description.width_costs is not None:
                self.drafts = self.drafts or SequenceDrafts(sequence, self.submission, model.description)
            self._batcher.emit(DecodeStarted(self.request_id, self._batcher.now_ns()))
        return chunk.end - chunk.start

    def end_of_prompt(self) -> Ended | None:
        """Returns how the sequence ends if its prompt is computed and no token is wanted after it."""
        is_over = not self.sequence.max_new_tokens and self.sequence.num_computed == len(self.sequence.prompt_ids)
        return Ended(self.usage(), FinishReason.LENGTH) if is_over else None

    def take(self, result: DecodeResult) -> Ended | None:
        """Appends the tokens of a decode step up to the one that ends the answer. Returns how it ends, if it does."""
        output_ids, reason = self.sequence.output_ids, None
        if not output_ids:
            self._batcher.emit(FirstToken(self.request_id, self._batcher.now_ns()))
        start = len(output_ids)
        for token_id in result.token_ids:
            output_ids.append(token_id)
            if (reason := self._end_after(token_id, len(output_ids))) is not None:
                break
        taken = slice(len(output_ids) - start)
        logprobs, has_eos = result.logprobs[taken], reason is FinishReason.STOP
        self._send(Tokens(result.token_ids[taken], logprobs, has_eos, result.drafter, result.num_proposed))
        if reason is not None:
            return Ended(self.usage(), reason)
        if not start:
            self._batcher.deliver()  # the first token leaves before the end of the prompt is captured
        self.cache.decoded(self._loaded(), self._new_ids())
        return None

    # ---- leaving the batch --------------------------------------------------------------------------------------

    def suspend(self) -> None:
        """Captures the state of a sequence that is preempted after this step. A failure is a fault, and costs computing
        it again."""
        if self.phase in (Phase.PREFILLING, Phase.DECODING):
            with self._batcher.attempt("cache.suspend"):
                self.cache.suspend(self._loaded(), self._new_ids())

    def preempt(self, prefix_cache: PrefixCache, *, is_alone: bool) -> None:
        """Releases the state and waits for admission again. `is_alone`: no other sequence could be preempted. Raises
        MemoryBusy after repeated preemptions without progress: by the estimate the request fits, by the reading not."""
        sequence = self.sequence
        if not sequence.may_resume(is_alone=is_alone):
            raise MemoryBusy(
                f"this request does not fit in memory at present: it was preempted {sequence.num_preempted} times, the"
                f" last time at token {sequence.position}; try again later"
            )
        self.release()
        sequence.preempt()
        self._batcher.emit(RequestPreempted(self.request_id, self._batcher.now_ns()))
        self.queue_up(prefix_cache)

    def end(self, phase: Phase, item: Ended) -> None:
        """Captures what is worth keeping, releases the state and sends `item`, the last one. A failure on the way is a
        fault, and does not change how the sequence ended."""
        was_open = self.phase in (Phase.PREFILLING, Phase.DECODING)
        if self.phase is Phase.QUEUED:
            self._batcher.left_queue()
        self.sequence.enter(phase)
        if was_open and phase is not Phase.FAILED:
            with self._batcher.attempt("cache.end"):
                if self._model is not None and self.cache.end(self._model, self._new_ids()):
                    self._has_state = False
        self.release()
        self._send(item)

    def release(self) -> None:
        """Releases the state and everything pinned for it. Idempotent."""
        with self._batcher.attempt("cache.abandon"):
            self.cache.abandon()
        with self._batcher.attempt("engine.images"):
            self.images.release()
        for _ in range(CLOSE_TRIES):
            with self._batcher.attempt("engine.close"):
                if self._has_state and self._model is not None:
                    self._model.close([self.id])
                self._has_state = False

    # ---- helpers ------------------------------------------------------------------------------------------------

    def _emit_chunk(self, start: int, end: int, started_ns: int, *, is_resumed: bool) -> None:
        id, at_ns = self.request_id, self._batcher.now_ns()
        self._batcher.emit(
            PrefillChunkComputed(id=id, start=start, end=end, started_ns=started_ns, at_ns=at_ns, is_resumed=is_resumed)
        )

    def _compute(self, model: LoadedModel, token_ids: IdRow, images: Images, *, starts_decode: bool) -> PromptScores:
        asked, num_tops = self.submission, self._num_scored_tops()
        if not starts_decode:
            return model.prefill(self.id, token_ids, num_prompt_logprobs=num_tops, images=images)
        if self.constraint is not None:
            self.constraint.catch_up(self.sequence.output_ids)
        start = DecodeStart(
            asked.prompt.token_ids,
            asked.sampling,
            seed=choice_seed(asked.seed, self.choice),
            min_tokens=asked.min_tokens,
            eos_token_ids=asked.eos_token_ids | asked.stop_token_ids,
            constraint=self.constraint,
            output_ids=tuple(self.sequence.output_ids),
        )
        return model.start_decode(self.id, token_ids, start, num_prompt_logprobs=num_tops, images=images)

    def _end_after(self, token_id: int, num_tokens: int) -> FinishReason | None:
        asked = self.submission
        is_enough = num_tokens >= asked.min_tokens or asked.grammar is not None  # with a grammar it ends where it must
        is_end = token_id in asked.stop_token_ids or (token_id in asked.eos_token_ids and not asked.ignore_eos)
        if is_end and is_enough:
            return FinishReason.STOP
        return FinishReason.LENGTH if num_tokens >= asked.max_new_tokens else None

    def _num_scored_tops(self) -> int | None:
        """Returns with how many alternatives the rest of the prompt is scored; None when it is not, or was reported."""
        is_done = self._num_reported >= len(self.sequence.prompt_ids)
        return self.submission.num_prompt_logprobs if self.choice == 0 and not is_done else None

    def _begin_prompt(self, explanation: Explanation) -> None:
        """Asks for images, and sends Admitted once for each choice, also if it is preempted or resumed."""
        self.images.move_to(self.sequence.num_computed)
        if self._explanation is None:
            self._explanation = explanation
            self._send(Admitted(explanation))
            self.images.report(explanation.stopped_at)

    def _report_progress(self, chunk: PrefillChunk, scores: PromptScores) -> None:
        """Sends what of the prompt was not reported before the sequence was preempted or resumed."""
        num_before, num_prompt = self._num_reported, len(self.sequence.prompt_ids)
        if chunk.end <= num_before or num_before == num_prompt:
            return
        if self._num_scored_tops() is not None:
            self._send(PromptLogprobs(self.images.text_scores(scores, chunk.start)[max(0, num_before - chunk.start) :]))
        self._num_reported = chunk.end
        self._send(PrefillProgress(chunk.end, num_prompt))

    def _is_compiled(self) -> bool:
        return self.constraint is None or self.constraint.poll()

    def _new_ids(self) -> list[int]:
        """Returns the output after the prefilled tokens."""
        sequence = self.sequence
        return sequence.output_ids[sequence.num_resumed :] if sequence.num_resumed else sequence.output_ids

    def _loaded(self) -> LoadedModel:
        if self._model is None:
            raise ServerUnavailable(f"model {self.submission.model} was unloaded")
        return self._model
