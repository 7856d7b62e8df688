"""Plays a random workload against a simulated server and checks every answer. One seed, one run, always the same."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from adapters.fake import FakeModel, FakeOptions
from adapters.memory.block_store import MemoryBlockStore
from application.events import PrefillChunkComputed, RequestPreempted
from application.ports.compute import DecodeStart, Images
from application.ports.engine import Ended, EngineItem, Submission
from application.ports.tokenizer import EncodedPrompt
from domain.errors import ServerUnavailable
from domain.id_row import IdRow
from domain.ids import ModelId, RequestId, SequenceId
from domain.models.capability import Pooling
from domain.models.model_card import ModelSource
from domain.request.request import FinishReason, choice_id, choice_seed
from domain.request.sampling import SamplingParams
from domain.request.stream import Admitted, Pooled
from domain.scheduling.plan_step import next_prompt_chunk
from domain.scheduling.sequence import Phase
from domain.scheduling.step_values import StepLimits
from tests.simulation.bound import Promise, ReuseBound
from tests.simulation.workload import BY_DIGEST, SALTS, TOYS, VOCAB, Conversation, Workload, is_broken
from tests.simulation.world import World, draw_plan
from tests.support.engines.drafters import KnowingDrafter
from tests.support.engines.sync_engine import tokens_of, usage_of
from tests.support.stores.store_records import empty

EMBED = Pooling()


@dataclass
class Asked:
    """A choice of a request that was submitted to the server that runs now. `stopped_at`: tokens that count."""

    talk: Conversation
    submission: Submission
    choice: int
    promise: Promise
    stopped_at: int | None = None

    @property
    def id(self) -> RequestId:
        return choice_id(self.submission.id, self.choice)


class Simulation:
    """`run` plays `num_actions` and then waits for everything to end. `counts`: what happened."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.plan = draw_plan(self._random)
        self._memory = MemoryBlockStore(self.plan.quota_bytes) if self.plan.quota_bytes is not None else None
        self._workload = Workload(self._random, list(self.plan.models), sees=self.plan.sees)
        self._world = self._start()
        self._asked: dict[RequestId, Asked] = {}
        self._num_requests = 0
        self._plain: dict[tuple[object, ...], list[int]] = {}
        self._bound = ReuseBound(self.plan)
        self.counts: Counter[str] = Counter()

    def run(self, num_actions: int) -> Counter[str]:
        actions = (
            (self._step, 110),
            (self._submit, 5),
            (self._pump, 8),
            (self._work, 8),
            (self._cancel, 3),
            (self._leave_restored, 15),
            (self._stop, 2),
            (self._restart, 1),
            (self._reload, 2),
            (self._press, 0 if self.plan.is_ample else 2),
            (self._clear, 1),
            (self._resize, 0 if self.plan.is_ample else 2),
            (self._lose, 0 if self.plan.is_ample else 1),
            (self._toggle_store, 0 if self.plan.is_ample else 1),
            (self._hang, 0 if self.plan.is_ample else 3),
        )
        kinds, weights = zip(*actions, strict=True)
        for action in self._random.choices(kinds, weights, k=num_actions):
            action()
            self._world.check()
            self._settle_ended()
        self._finish()
        return self.counts

    def _start(self) -> World:
        return World(self.plan, self._memory, self._random)

    def _submit(self) -> None:
        """A client, or several at once that want much the same."""
        burst = self._workload.draw(self._random.choice((1, 1, 2, 4)))
        for talk, prompt in burst:
            self._ask(talk, prompt)

    def _ask(self, talk: Conversation, prompt: EncodedPrompt) -> None:
        random = self._random
        self._num_requests += 1
        sampling = SamplingParams(temperature=random.choice((0.0, 1.0)), seed=random.randrange(1000))
        submission = Submission(
            id=RequestId(f"r{self._num_requests}"),
            model=talk.model,
            prompt=prompt,
            sampling=sampling,
            seed=sampling.seed or 0,
            max_new_tokens=random.choice((1, 6, 24, 50)),
            eos_token_ids=frozenset({self.plan.models[talk.model].eos_id}),
            cache_salt=talk.salt,
            num_choices=random.choice((1, 1, 1, 2, 4)),
        )
        self.counts["images"] += len(prompt.media)
        is_pooled = random.random() < 0.2 and not prompt.media  # texts for vectors and scores hold no images
        submission = self._pooled(submission) if is_pooled else self._predicted(submission)
        promise = self._bound.promise(submission)
        for choice in range(submission.num_choices):
            asked = Asked(talk, submission, choice, promise)
            self._asked[asked.id] = asked
            self._bound.submitted(asked.id, submission)
        self._world.add(submission)
        self.counts["submitted"] += submission.num_choices

    def _pooled(self, submission: Submission) -> Submission:
        """Rows behind the prompt instead of an answer, or behind none."""
        random = self._random
        lengths = sorted((random.randint(1, 40) for _ in range(random.randint(1, 8))), reverse=True)
        rows = tuple(IdRow(random.randrange(VOCAB) for _ in range(length)) for length in lengths)
        prompt = EncodedPrompt(IdRow()) if random.random() < 0.1 else submission.prompt
        return replace(
            submission,
            prompt=prompt.followed_by(rows[0][:1]),
            max_new_tokens=0,
            num_choices=1,
            pooling=EMBED,
            rows=rows,
        )

    def _predicted(self, submission: Submission) -> Submission:
        """The request, perhaps without drafts, or with a prediction that is right but for a token. Shows the answers to
        the model's own drafter."""
        random, drafter = self._random, self.plan.models[submission.model].drafter
        if self.plan.models[submission.model].width_costs is None or is_broken(submission.prompt):
            return submission
        answers = [self._plain_answer(submission, choice) for choice in range(submission.num_choices)]
        if isinstance(drafter, KnowingDrafter):
            for answer in answers:
                drafter.learn(submission.prompt.token_ids, answer)
        guess = [*answers[0]] if random.random() < 0.2 else []
        if guess:
            guess[random.randrange(len(guess))] ^= 1
        return replace(submission, speculates=random.random() < 0.9, predicted_ids=IdRow(guess))

    def _step(self) -> None:
        if self._world.loop.is_busy:
            self._world.step()

    def _pump(self) -> None:
        if self._world.writer is not None:
            self._world.writer.pump(self._random.randint(1, 15))

    def _work(self) -> None:
        self._world.lane.run()

    def _cancel(self) -> None:
        if self._asked:
            asked = self._random.choice(list(self._asked.values()))
            self._world.loop.cancel(asked.submission.id, self._random.choice((None, asked.choice)))
            self.counts["cancelled"] += 1

    def _leave_restored(self) -> None:
        """Clients leave whose state was put back or taken over, and who have computed nothing on it."""
        for run in self._world.loop._in_phase(Phase.PREFILLING):
            if 0 < sum(run.cache.explanation.reused.values()) == run.sequence.num_computed:
                self._world.loop.cancel(run.submission.id, run.choice)
                self.counts["left restored"] += 1

    def _stop(self) -> None:
        """The text side finds a stop string in the tokens it received, perhaps some tokens back."""
        told = {id: len(output) for id in self._asked if (output := tokens_of(self._world.inbox.items.get(id, [])))}
        if told:
            id = self._random.choice(list(told))
            asked, num_tokens = self._asked[id], self._random.randint(1, told[id])
            asked.stopped_at = num_tokens
            self._world.loop.cancel(asked.submission.id, asked.choice, reason=FinishReason.STOP, num_tokens=num_tokens)
            self.counts["stopped"] += 1

    def _restart(self) -> None:
        """Cleanly, with everything written, or as after a crash."""
        self.counts["restarts"] += 1
        if self._random.random() < 0.5:
            self._world.loop.fail_all(ServerUnavailable("stopping"))
            self._settle_ended(is_stopping=True)
            self._world.check_idle()
            if self._world.writer is not None:
                self._world.writer.pump()
        else:
            self._bound.forget()
            self.counts["crashes"] += 1
        self._asked.clear()
        self.counts["lookups checked"] += self._world.tiers.num_checked
        self._world = self._start()

    def _resize(self) -> None:
        self._world.hot.resize(self._random.choice((0, 5_000, 50_000, self.plan.hot_bytes)))

    def _lose(self) -> None:
        """An operator clears a namespace of the store."""
        if self._memory is not None and (known := self._memory.usage().namespaces):
            empty(self._memory, self._random.choice(known).info)
            self.counts["cleared"] += 1

    def _press(self) -> None:
        """Memory gets short: what is kept alive goes first."""
        self._world.live.shrink(self._random.choice((0, 5_000, 30_000)))
        self._world.loop.images.shrink(self._random.choice((0, 100)))

    def _reload(self) -> None:
        """A model without requests is unloaded, and comes back."""
        asked = {asked.submission.model for asked in self._asked.values()}
        if idle := [id for id in self.plan.models if id not in asked]:
            self._world.reload(self._random.choice(idle))
            self.counts["reloads"] += 1

    def _clear(self) -> None:
        """An operator clears the cache of a tenant, or all of it: nothing of before is given out again."""
        if (faulty := self._world.faulty) is None or not faulty.is_down:
            salt = self._random.choice((None, *SALTS))
            self._world.cache.clear(None, salt)
            self._bound.clear(salt, self._asked)
            self.counts["clearings"] += 1

    def _toggle_store(self) -> None:
        if (faulty := self._world.faulty) is not None:
            faulty.is_down = not faulty.is_down
            self._world.tiers.is_store_truthful &= not faulty.is_down

    def _hang(self) -> None:
        """Reads that are under way do not return before the workers' next turn, and the deadline passes."""
        self.counts["hung reads"] += self._world.lane.hang()
        self._world.clock.advance(3600)

    def _finish(self) -> None:
        for _ in range(20_000):
            if not self._world.loop.is_busy:
                break
            self._world.step()
            self._settle_ended()
        assert not self._asked, "a request never ended"
        self._world.lane.run()
        self._world.check_idle()
        self.counts["followed"] += len(self._world.events.of("PrefixAwaited"))
        self.counts["lookups checked"] += self._world.tiers.num_checked
        if self._world.writer is not None:
            self._world.writer.pump()
        self._world.check()

    def _settle_ended(self, *, is_stopping: bool = False) -> None:
        for id, asked in list(self._asked.items()):
            items = self._world.inbox.items.get(id, [])
            if items and isinstance(items[-1], Ended):
                del self._asked[id]
                self._check_answer(asked, items, is_stopping=is_stopping)

    def _check_answer(self, asked: Asked, items: list[EngineItem], *, is_stopping: bool) -> None:
        submission, last = asked.submission, items[-1]
        if is_broken(submission.prompt):
            assert isinstance(last, Ended)
            assert not tokens_of(items)
            assert last.error is not None or last.reason is FinishReason.CANCELLED, "an image that cannot be seen was"
            self.counts["broken images"] += last.error is not None and last.error.kind == "InvalidRequest"
            self._bound.ended(asked.id, submission, [], is_complete=False, num_reused=0)
            return
        output, expected = tokens_of(items)[: asked.stopped_at], self._plain_answer(asked.submission, asked.choice)
        values = self._check_values(asked, items)
        assert output == expected[: len(output)], f"{asked.id} got a wrong token"
        assert isinstance(last, Ended)
        if last.error is not None:
            assert is_stopping or self._world.num_injected, last.error
            self._bound.ended(asked.id, submission, output, is_complete=False, num_reused=0)
            self.counts["failed"] += 1
            return
        usage = usage_of(items)
        assert usage.prompt_tokens == submission.num_prompt_tokens
        assert usage.completion_tokens == len(output)
        num_rejected = usage.num_proposed - usage.num_accepted
        assert num_rejected >= 0
        assert asked.stopped_at is not None or usage.num_accepted < max(1, len(output)), "more drafted than put out"
        for name, number in usage.accepted.items():
            self.counts[f"accepted {name}"] += number
        self.counts["rejected"] += num_rejected
        told = [item.explanation for item in items if isinstance(item, Admitted)]
        assert len(told) <= 1
        if told:
            assert told[0].reused == usage.reused
            self._check_accounting(asked, usage.reused_tokens, is_whole=last.reason is not FinishReason.CANCELLED)
            allowance = self._bound.allowance(asked.id, submission)
            assert usage.reused_tokens <= allowance, "more was reused than there was to share"
            promise = asked.promise
            if self._bound.holds(promise):
                assert usage.reused_tokens >= promise.tokens, f"{usage.reused_tokens} reused of {promise.tokens}"
                self.counts["promised tokens"] += promise.tokens
        assert asked.stopped_at is None or last.reason is FinishReason.STOP
        is_complete = last.reason is not FinishReason.CANCELLED and asked.stopped_at is None
        self._bound.ended(asked.id, submission, output, is_complete=is_complete, num_reused=usage.reused_tokens)
        if is_complete:
            assert output == expected
            assert values == len(submission.rows)
            self._workload.answered(asked.talk, output)
            self.counts["finished"] += 1
            self.counts["rows"] += values
        self.counts["prompt tokens"] += usage.prompt_tokens
        self.counts["reused tokens"] += usage.reused_tokens
        self.counts["tokens taken over"] += usage.reused.get("live", 0)

    def _check_accounting(self, asked: Asked, num_reused: int, *, is_whole: bool) -> None:
        chunks = [
            event
            for event in self._world.events.events
            if isinstance(event, PrefillChunkComputed) and event.id == asked.id
        ]
        computed = sum(chunk.end - chunk.start for chunk in chunks if not chunk.is_resumed)
        end = asked.submission.num_prompt_tokens
        preemptions = [
            event for event in self._world.events.events if isinstance(event, RequestPreempted) and event.id == asked.id
        ]
        self.counts["preempted"] += len(preemptions)
        is_whole = is_whole and not preemptions
        assert computed == end - num_reused if is_whole else computed <= end - num_reused

    def _check_values(self, asked: Asked, items: list[EngineItem]) -> int:
        """Returns the number of rows that were reported, each once, with the value of its whole text."""
        submission, found = asked.submission, [one for item in items if isinstance(item, Pooled) for one in item.values]
        if found:
            expected = plain_values(self.plan.models[submission.model], submission, self.plan.limits)
            assert found == expected[: len(found)], f"{asked.id} got a wrong value"
        return len(found)

    def _plain_answer(self, submission: Submission, choice: int) -> list[int]:
        """Returns the answer of a server without any cache or draft."""
        if submission.pooling is not None:
            return []
        seed = choice_seed(submission.seed, choice)
        key = (submission.model, submission.prompt.key_ids, submission.max_new_tokens, submission.sampling, seed)
        if key not in self._plain:
            options = self.plan.models[submission.model]
            self._plain[key] = plain_answer(options, submission, seed, self.plan.limits)
        return self._plain[key]


def seen_by(model: FakeModel, submission: Submission) -> tuple[Images, tuple[tuple[int, int], ...]]:
    """Opens sequence 0 with the prompt's images. Returns their features, and those that no chunk may cut."""
    id, media = SequenceId(0), submission.prompt.media
    model.open(id)
    if media:
        model.set_media(id, media)
    images = {span.digest: model.encode_image(TOYS.process(BY_DIGEST[span.digest]).prepared) for span in media}
    return images, tuple((span.start, span.end) for span in media) if model.description.image_is_whole else ()


def plain_values(options: FakeOptions, submission: Submission, limits: StepLimits) -> Sequence[bytes]:
    """The same model alone: the prompt in the canonical chunks, and each row behind it."""
    model = FakeModel(ModelSource(ModelId("plain"), "nowhere"), options)
    id, at, tokens = SequenceId(0), 0, submission.prompt.token_ids[:-1]
    images, whole = seen_by(model, submission)
    while at < len(tokens):
        end = next_prompt_chunk(at, len(tokens) + 1, limits, (len(tokens),), whole, options.chunking)
        model.prefill(id, tokens[at:end], images=images)
        at = end
    return [value for row in submission.rows for value in model.pool(id, [row], EMBED)]


def plain_answer(options: FakeOptions, submission: Submission, seed: int, limits: StepLimits) -> list[int]:
    """The same model alone, in the canonical chunks, token by token."""
    model = FakeModel(ModelSource(ModelId("plain"), "nowhere"), options)
    id, at, tokens = SequenceId(0), 0, submission.prompt.token_ids
    images, whole = seen_by(model, submission)
    while (end := next_prompt_chunk(at, len(tokens), limits, (), whole, options.chunking)) < len(tokens):
        model.prefill(id, tokens[at:end], images=images)
        at = end
    model.start_decode(id, tokens[at:], DecodeStart(tokens, submission.sampling, seed=seed), images=images)
    output: list[int] = []
    while len(output) < submission.max_new_tokens and options.eos_id not in output:
        output += model.decode([id])[0].token_ids
    return output
