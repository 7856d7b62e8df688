"""One choice of a submission on its way through the engine: what happens to it in each phase, and what is told of it.

    waiting ──admit──► restoring ──restore──► prefilling ──prefill──► decoding ──take──► ended (or with its prompt)
       │ ▲             (prefix cache at work)     ▲                      │
       │ └──preempt───────────────────────────────│──────────────────────┘
       └────────────────────fork──────────────────┘

A submission's first choice leads: it prefills the prompt, and just before the chunk that ends it the others are forked
from its state. Until then they wait for it.

Who is preempted loses its state, not what it has told: it goes on as a prompt of its prompt and its output. So does
who comes from an engine that was lost: it begins as one that was preempted.

Every method may raise; the step runner turns that into the end of this sequence alone. Compute thread only.
"""

from collections.abc import Callable
from functools import partial

from application.events import DecodeStarted, FirstToken, PrefillChunkComputed, RequestAdmitted, RequestPreempted
from application.ports.compute import DecodeResult, DecodeStart, LoadedModel, PromptScores
from application.ports.engine import Ended, EngineItem, ResumedChoice, Submission, Tokens
from application.ports.token_constraint import TokenConstraint
from application.services.prefix.cache import PrefixCache
from application.services.prefix.sequence_cache import SequenceCache
from application.services.token_side.constraints import FollowedConstraint
from application.services.token_side.event_batcher import EventBatcher
from domain.errors import MemoryBusy, ServerUnavailable
from domain.id_row import IdRow
from domain.ids import SequenceId
from domain.memory.shape import MemoryShape
from domain.prefix.explanation import Explanation
from domain.request.request import FinishReason, Usage, choice_id, choice_seed
from domain.request.stream import Admitted, PrefillProgress, PromptLogprobs
from domain.scheduling.plan_step import PrefillChunk, SequenceView
from domain.scheduling.preemption import Preemptions
from domain.scheduling.sequence import Phase, Sequence

CLOSE_TRIES = 2
"""A state that could not be closed is closed once more: what is left of it otherwise stays until its model goes."""


class SequenceRun:
    """`model` is None when it was unloaded before the sequence came; admission then fails. `leader`: the choice whose
    state this one waits for. `charge_bytes`, `num_waited`: as in SequenceView."""

    def __init__(
        self,
        id: SequenceId,
        submission: Submission,
        choice: int,
        *,
        model: LoadedModel | None,
        batcher: EventBatcher,
    ) -> None:
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
        self._send = partial(batcher.send, submission.id, choice)  # no method: what ended would wait for the collector
        num_logprobs = submission.num_prompt_logprobs if choice == 0 else None
        self._told = ToldPrompt(len(submission.prompt.token_ids), num_logprobs, self._send, resumed)
        self._preemptions = Preemptions()
        self.leader: SequenceRun | None = None
        self.charge_bytes = self.num_waited = 0
        self._model = model
        self._batcher = batcher
        self._cache: SequenceCache | None = None
        self._constraint: FollowedConstraint | None = None
        self._has_state = False

    @property
    def id(self) -> SequenceId:
        return self.sequence.id

    @property
    def phase(self) -> Phase:
        return self.sequence.phase

    def shape(self) -> MemoryShape | None:
        """What its model needs of memory; None when that was unloaded."""
        return self._model.description.memory if self._model is not None else None

    def can_fork(self) -> bool:
        """Whether others may go on from this one's state: what cannot be captured cannot be forked either."""
        return self._model is not None and not self._model.description.layout.unsupported

    def view(self) -> SequenceView:
        """The planner's view. Of one that decodes the cache has nothing to say."""
        sequence = self.sequence
        cache = self._cache if sequence.phase is not Phase.DECODING else None
        return SequenceView(
            sequence.id,
            sequence.phase,
            sequence.position,
            len(sequence.fed_ids),
            cache.stops if cache is not None else (),
            charge_bytes=self.charge_bytes,
            priority=self.submission.priority,
            num_waited=self.num_waited,
            num_preempted=self._preemptions.count,
            is_scored=self._told.num_logprobs is not None,
            is_looked_up=cache is None or cache.is_looked_up,
            takes_over=cache.takes_over if cache is not None else None,
            follows=cache.follows if cache is not None else None,
            next_block=cache.next_block if cache is not None else None,
            is_held=sequence.phase is Phase.RESTORING and self._is_held(),
        )

    def usage(self) -> Usage:
        return self._told.usage(len(self.sequence.output_ids))

    def constrain(self, constraint: TokenConstraint | None) -> None:
        """Choose no token that this does not allow; None allows all."""
        self._constraint = FollowedConstraint(constraint) if constraint is not None else None

    def queue_up(self, prefix_cache: PrefixCache) -> None:
        """Wait for admission, and for no other choice."""
        self.leader, asked, sequence = None, self.submission, self.sequence
        resumed = sequence.fed_ids[len(sequence.prompt_ids) :]
        self._cache = prefix_cache.begin(
            self.id,
            self.request_id,
            asked.model,
            asked.prompt.followed_by(resumed) if resumed else asked.prompt,
            asked.cache_salt,
            persist=asked.persist,
            restores=self._told.num_logprobs is None,
        )

    def look(self) -> None:
        """In the queue: find out what there is to start from, and whom it follows."""
        self._begun().look()

    def look_ahead(self) -> bool:
        """Near the head of the queue: have its prefix fetched, step by step. True when it was not known what it starts
        from, and is now."""
        cache = self._begun()
        was_looked_up = cache.is_looked_up
        cache.prepare(ahead=True)
        cache.poll()
        return cache.is_looked_up and not was_looked_up

    def admit(self) -> None:
        """Open a state; it is restored as soon as its prefix has been fetched."""
        self._leave_queue(Phase.RESTORING)
        self._loaded().open(self.id)
        self._begun().prepare()
        self._batcher.emit(RequestAdmitted(self.request_id, self._batcher.now_ns()))

    def fork_from(self, leader: "SequenceRun") -> None:
        """Go on from the state of a choice that has computed the prompt so far."""
        self.leader = None
        self._leave_queue(Phase.PREFILLING)
        self._loaded().fork(leader.id, [self.id])
        self._cache = leader._begun().fork(self.id, self.request_id)
        self._batcher.emit(RequestAdmitted(self.request_id, self._batcher.now_ns()))
        self.sequence.num_computed = leader.sequence.num_computed
        self._told.admitted(self._cache.explanation)

    def suspend(self) -> None:
        """It will be preempted after this step: keep what there is of its state. What fails is a fault, and costs
        computing it again."""
        if self.phase in (Phase.PREFILLING, Phase.DECODING):
            self._batcher.attempt("cache.suspend", self._suspend)

    def preempt(self, prefix_cache: PrefixCache, *, is_alone: bool) -> None:
        """Release the state and wait for admission again. `is_alone`: no other sequence could be preempted. Raises
        MemoryBusy when that is hopeless: by the estimate the request fits, so that what is short is what was read."""
        position = self.sequence.position
        if not self._preemptions.add(position, is_alone=is_alone):
            raise MemoryBusy(
                f"memory does not hold this request at present: it was preempted {self._preemptions.count} times,"
                f" the last time at token {position}; try again later"
            )
        self.release()
        self.sequence.preempt()
        self._batcher.emit(RequestPreempted(self.request_id, position, self._batcher.now_ns()))
        self.queue_up(prefix_cache)

    def try_restore(self) -> bool:
        """Restore once everything needed is here; False while it is not."""
        cache = self._begun()
        if not cache.poll() or not (self._constraint is None or self._constraint.poll()):
            return False
        self.sequence.num_computed = cache.restore(self._loaded())
        self.sequence.enter(Phase.PREFILLING)
        self._told.admitted(cache.explanation)
        return True

    def ends_prompt(self, chunk: PrefillChunk) -> bool:
        return chunk.end == len(self.sequence.fed_ids)

    def prefill(self, chunk: PrefillChunk) -> int:
        """Compute a chunk; the one that ends the prompt begins to decode, where a token is wanted. Returns the tokens
        computed."""
        sequence, model = self.sequence, self._loaded()
        fed, started = sequence.fed_ids, self._batcher.now_ns()
        starts_decode = self.ends_prompt(chunk) and sequence.max_new_tokens > 0
        scores = self._compute(model, fed[chunk.start : chunk.end], starts_decode=starts_decode)
        now = self._batcher.now_ns()
        self._batcher.emit(
            PrefillChunkComputed(
                id=self.request_id,
                start=chunk.start,
                end=chunk.end,
                started_ns=started,
                at_ns=now,
                is_resumed=self._was_resumed or self._preemptions.count > 0,
            )
        )
        self._told.computed(chunk, scores)
        sequence.num_computed = chunk.end
        # No later request resumes behind the last token but one. A state that cannot be cut stood there at a stop.
        if (reusable := min(chunk.end, len(fed) - 1)) > chunk.start:
            self._begun().prefilled(model, reusable)
        if starts_decode:
            sequence.enter(Phase.DECODING)
            self._batcher.emit(DecodeStarted(self.request_id, self._batcher.now_ns()))
        return chunk.end - chunk.start

    def end_of_prompt(self) -> Ended | None:
        """How the sequence ends, if no token was wanted behind its prompt and all of that is computed."""
        is_over = not self.sequence.max_new_tokens and self.sequence.num_computed == len(self.sequence.prompt_ids)
        return Ended(self.usage(), FinishReason.LENGTH) if is_over else None

    def take(self, result: DecodeResult) -> Ended | None:
        """Take in what was sampled; returns how the sequence ends, if it does."""
        output_ids, reason = self.sequence.output_ids, None
        if not output_ids:
            self._batcher.emit(FirstToken(self.request_id, self._batcher.now_ns()))
        start = len(output_ids)
        for token_id in result.token_ids:
            output_ids.append(token_id)
            if (reason := self._end_after(token_id, len(output_ids))) is not None:
                break
        taken = slice(len(output_ids) - start)
        self._send(Tokens(result.token_ids[taken], result.logprobs[taken], has_eos=reason is FinishReason.STOP))
        if reason is not None:
            return Ended(self.usage(), reason)
        self._begun().decoded(self._loaded(), self._new_ids())
        return None

    def cut(self, num_tokens: int | None) -> None:
        """Only so many of its tokens count; None: all."""
        if num_tokens is not None:
            del self.sequence.output_ids[num_tokens:]

    def end(self, phase: Phase, item: Ended) -> None:
        """The last thing that happens: keep what is worth keeping, release the state or leave it to who goes on from
        it, tell everybody. What fails on the way is a fault, and changes nothing of how the sequence ended."""
        was_open = self.phase in (Phase.PREFILLING, Phase.DECODING)
        if self.phase is Phase.QUEUED:
            self._batcher.left_queue()
        self.sequence.enter(phase)
        if was_open and phase is not Phase.FAILED:
            self._batcher.attempt("cache.end", self._keep)
        self.release()
        self._send(item)

    def release(self) -> None:
        """Let go of the state and of everything pinned for it. Repeating it does nothing."""
        if self._cache is not None:
            self._batcher.attempt("cache.abandon", self._cache.abandon)
        for _ in range(CLOSE_TRIES):
            self._batcher.attempt("engine.close", self._close)

    def _is_held(self) -> bool:
        is_constrained = self._constraint is not None and not self._constraint.poll()
        return is_constrained or self._begun().is_waiting

    def _leave_queue(self, phase: Phase) -> None:
        """From here on there may be a state to close."""
        if self.phase is Phase.QUEUED:
            self._batcher.left_queue()
        self.sequence.enter(phase)
        self._has_state = self._model is not None

    def _compute(self, model: LoadedModel, token_ids: IdRow, *, starts_decode: bool) -> PromptScores:
        asked, num_tops = self.submission, self._told.num_logprobs
        if not starts_decode:
            return model.prefill(self.id, token_ids, num_prompt_logprobs=num_tops)
        if self._constraint is not None:
            self._constraint.catch_up(self.sequence.output_ids)
        start = DecodeStart(
            asked.prompt.token_ids,
            asked.sampling,
            seed=choice_seed(asked.seed, self.choice),
            min_tokens=asked.min_tokens,
            eos_token_ids=asked.eos_token_ids,
            constraint=self._constraint,
            output_ids=tuple(self.sequence.output_ids),
        )
        return model.start_decode(self.id, token_ids, start, num_prompt_logprobs=num_tops)

    def _end_after(self, token_id: int, num_tokens: int) -> FinishReason | None:
        asked = self.submission
        is_enough = num_tokens >= asked.min_tokens or asked.grammar is not None  # with a grammar it ends where it must
        if token_id in asked.eos_token_ids and not asked.ignore_eos and is_enough:
            return FinishReason.STOP
        return FinishReason.LENGTH if num_tokens >= asked.max_new_tokens else None

    def _keep(self) -> None:
        if self._cache is not None and self._model is not None and self._cache.end(self._model, self._new_ids()):
            self._has_state = False

    def _suspend(self) -> None:
        self._begun().suspend(self._loaded(), self._new_ids())

    def _new_ids(self) -> list[int]:
        """What was put out behind what was prefilled."""
        sequence = self.sequence
        return sequence.output_ids[sequence.num_resumed :] if sequence.num_resumed else sequence.output_ids

    def _close(self) -> None:
        if self._has_state and self._model is not None:
            self._model.close([self.id])
        self._has_state = False

    def _begun(self) -> SequenceCache:
        assert self._cache is not None, "it has not queued up"
        return self._cache

    def _loaded(self) -> LoadedModel:
        if self._model is None:
            raise ServerUnavailable(f"model {self.submission.model} was unloaded")
        return self._model


class ToldPrompt:
    def __init__(
        self,
        num_prompt: int,
        num_logprobs: int | None,
        send: Callable[[EngineItem], None],
        before: ResumedChoice | None = None,
    ) -> None:
        """`num_logprobs`: the reader wants the prompt's log probabilities, each with so many alternatives. `before`:
        what another engine told."""
        self._num_prompt = num_prompt
        self._num_logprobs = num_logprobs
        self._send = send
        self._num_done = before.num_prompt_done if before is not None else 0
        self._explanation = before.explanation if before is not None else None

    @property
    def num_logprobs(self) -> int | None:
        """How the rest of the prompt is to be scored; None when nothing is, or all of it was told."""
        return self._num_logprobs if self._num_done < self._num_prompt else None

    def usage(self, num_output: int) -> Usage:
        if self._explanation is None:
            return Usage(self._num_prompt, num_output)
        return Usage.of(self._explanation, num_output)

    def admitted(self, explanation: Explanation) -> None:
        if self._explanation is None:
            self._explanation = explanation
            self._send(Admitted(explanation))

    def computed(self, chunk: PrefillChunk, scores: PromptScores) -> None:
        """`scores`: of the chunk's tokens, if they were to be scored."""
        num_before = self._num_done
        if chunk.end <= num_before or num_before == self._num_prompt:
            return
        self._num_done = chunk.end
        if self._num_logprobs is not None:
            self._send(PromptLogprobs(tuple(scores[max(0, num_before - chunk.start) :])))
        self._send(PrefillProgress(chunk.end, self._num_prompt))
