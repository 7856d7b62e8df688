"""Random histories of an index: a subscriber knows what can be resumed, after losses and late joins too."""

from collections.abc import Sequence
from random import Random

import pytest

from adapters.fake import ATTENTION, HYBRID, WINDOWED
from domain.id_row import IdRow
from domain.ids import BlockHash
from domain.prefix.hashing import BlockChain
from domain.prefix.index import HOT, PERSISTED, QUEUED, STORED, PrefixIndex, ReuseRules
from domain.prefix.prompt_content import BlockGrid, EncodedPrompt, MediaSpan
from domain.prefix.published_blocks import BlocksCleared, Medium, PublishedBlocks
from domain.prefix.record import BlockKey, Namespace, NamespaceInfo, Record, RecordKey
from tests.support.effort import drawn
from tests.support.stores.published_picture import Picture

ROOT, BLOCK = Namespace(b"r" * 32), 4
INFO = NamespaceInfo(ROOT, "toy", "{}")
LENGTH = 22


class History:
    """A few chains that share prefixes, some with an image, and the records that they may leave."""

    def __init__(self, random: Random) -> None:
        self.random = random
        layout = random.choice((ATTENTION, HYBRID, WINDOWED))
        self.rules = ReuseRules.of(layout, BlockGrid(BLOCK, 8, is_exact=random.random() < 0.25))
        self.size = random.choice((1, 2, 3, 4, 6, 8, 12))
        self.index, self.published = PrefixIndex(INFO), PublishedBlocks(ROOT, self.rules, self.size)
        self.noted: dict[RecordKey, None] = {}
        self.index.note_changed = lambda key: self.noted.setdefault(key)
        self.prompts = self._prompts()
        self.chains = [BlockChain.of(ROOT, BLOCK, prompt) for prompt in self.prompts]
        self.records: dict[RecordKey, Record] = {}
        for chain in self.chains:
            self._add_records(chain)

    def change(self) -> None:
        """Some records come to a place, or leave it, in any order."""
        keys = self.random.sample(list(self.records), self.random.randint(1, min(6, len(self.records))))
        place = self.random.choice((HOT, QUEUED, STORED, HOT | STORED))
        (self.index.add if self.random.random() < 0.65 else self.index.remove)(keys, place)

    def look_up(self) -> None:
        """The publisher's thread looks up what was noted."""
        for key in self.noted:
            places = self.index.places(key)
            if self.published.knows(key) or not places:
                self.published.move(key, places)
            else:
                self.published.add(self.records[key], places)
        self.noted.clear()

    def resumable(self) -> dict[tuple[int, ...], set[Medium]]:
        """The blocks by the index's own answers: the prefix of each position that a prompt resumes at exactly."""
        found: dict[tuple[int, ...], set[Medium]] = {}
        for prompt, chain in zip(self.prompts, self.chains, strict=True):
            ends = [at for at in range(1, LENGTH) if self._resumes_at(prompt, at)]
            for end in range(self.size, max(ends, default=0) + 1, self.size):
                media = found.setdefault(tuple(prompt.token_ids[:end]), set())
                start = (end - 1) // BLOCK * BLOCK
                keys = [BlockKey(ROOT, chain.hashes[start // BLOCK])] if max(ends) >= start + BLOCK else []
                keys += [chain.snapshot_key(at) for at in ends if end <= at < start + BLOCK]
                for key in keys:
                    places = self.index.places(key)
                    media |= {Medium.GPU} if places & HOT else set()
                    media |= {Medium.STORAGE} if places & PERSISTED else set()
        return found

    def _resumes_at(self, prompt: EncodedPrompt, position: int) -> bool:
        if any(span.start < position for span in prompt.media):
            return False  # for a text, which is all that a consumer credits
        chain = BlockChain(ROOT, BLOCK, prompt.token_ids[:position].followed_by([999]))
        return self.index.match(chain, self.rules).position == position

    def _prompts(self) -> list[EncodedPrompt]:
        rows: list[list[int]] = []
        for _ in range(self.random.randint(1, 4)):
            base = self.random.choice(rows)[: self.random.randrange(LENGTH)] if rows else []
            rows.append(base + [self.random.randrange(1, 9) for _ in range(LENGTH - len(base))])
        prompts = [EncodedPrompt.of_text(row) for row in rows]
        if self.random.random() < 0.4:
            start = self.random.randrange(LENGTH - 2)
            span = MediaSpan(start, self.random.randint(1, LENGTH - start), bytes(32))
            prompts.append(EncodedPrompt(IdRow(rows[0]), (), (span,)))
        return prompts

    def _add_records(self, chain: BlockChain) -> None:
        at_all: Sequence[int] = sorted(self.random.sample(range(1, LENGTH), self.random.randint(0, 6)))
        for index, hash in enumerate(chain.hashes):
            self._add(chain, BlockKey(ROOT, hash), chain.parent(index), index * BLOCK, (index + 1) * BLOCK)
        for at in at_all:
            key = chain.snapshot_key(at)
            self._add(chain, key, key.block_hash, at - key.num_partial, at)

    def _add(self, chain: BlockChain, key: RecordKey, parent: BlockHash, start: int, end: int) -> None:
        self.records[key] = Record(key, parent, end, chain.key_ids(start, end), {})


@pytest.mark.parametrize("part", range(4))
def test_a_subscriber_knows_what_can_be_resumed(part: int) -> None:
    for seed in range(drawn(500)):
        history = History(Random(f"{part} {seed}"))
        steady, lossy, has_lost = Picture(history.size), Picture(history.size), False
        for _ in range(history.random.randint(1, 12)):
            for _ in range(history.random.randint(1, 4)):
                history.change()
            if history.random.random() < 0.5:  # else several changes are looked up at once
                history.look_up()
            events = history.published.changes() if history.random.random() < 0.7 else []
            steady.apply(events)
            if history.random.random() < 0.3:
                has_lost = has_lost or bool(events)
            else:  # it notices the gap at the next batch
                lossy.apply([BlocksCleared(), *history.published.state()] if has_lost else events)
                has_lost = False
        history.look_up()
        last = history.published.changes()
        steady.apply(last)
        lossy.apply([BlocksCleared(), *history.published.state()] if has_lost else last)
        late = Picture(history.size)
        late.apply([BlocksCleared(), *history.published.state()])
        expected = history.resumable()
        assert steady.blocks == expected, f"seed {part} {seed}"
        assert late.blocks == lossy.blocks == expected, f"seed {part} {seed}"
        assert not history.published.changes()


def test_nothing_is_kept_of_what_went() -> None:
    history = History(Random("all"))
    history.index.add(history.records, HOT)
    history.look_up()
    assert history.published.changes()
    history.index.remove_all(HOT)
    history.look_up()
    history.published.changes()
    assert not history.published.keys()
    assert not [name for name, value in vars(history.published).items() if isinstance(value, dict) and value]
