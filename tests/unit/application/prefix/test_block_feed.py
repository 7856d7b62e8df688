"""The changes of the prefix cache that are published, and those that never are."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from adapters.fake import ATTENTION, HYBRID, FakeModel
from adapters.memory.block_store import MemoryBlockStore
from application.services.prefix import block_feed
from domain.ids import ModelId, RequestId, SequenceId
from domain.models.model_card import ModelSource
from domain.models.state_layout import StateLayout
from domain.prefix.hashing import BlockChain
from domain.prefix.index import ReuseRules
from domain.prefix.prompt_content import BlockGrid, EncodedPrompt, MediaSpan
from domain.prefix.published_blocks import BlockEvent, BlocksCleared, BlocksStored, Medium
from domain.prefix.record import NamespaceInfo, SnapshotKey
from tests.support.stores.cache_driver import BLOCK, GRID, KINDS, OPTIONS, TOY, CacheDriver, Job, options
from tests.support.stores.published_picture import Picture

SIZE = 8
PROMPT = tuple(range(100, 300))


class Told:
    """A driver with a subscriber. `events`: all that it was published."""

    def __init__(self, driver: CacheDriver) -> None:
        assert driver.feed is not None
        self.driver, self.feed, self.picture = driver, driver.feed, Picture(SIZE)
        self.events: list[BlockEvent] = []

    def hear(self) -> "Told":
        turns = 0
        while turns == 0 or self.feed.is_behind:
            events = self.feed.changes()
            self.picture.apply(events)
            self.events += events
            turns += 1
        assert turns < 1_000
        return self

    def credit(self, prompt: Sequence[int], medium: Medium = Medium.GPU) -> int:
        """The leading tokens of the prompt that a router would credit."""
        ends = range(SIZE, len(prompt) + 1, SIZE)
        published = [medium in self.picture.blocks.get(tuple(prompt[:end]), ()) for end in ends]
        return SIZE * [*published, False].index(False)


def told_of(layout: StateLayout = ATTENTION, store: MemoryBlockStore | None = None) -> Told:
    return Told(CacheDriver(options(layout), store=store, published_size=SIZE))


@KINDS
def test_the_blocks_of_a_prompt_are_published_as_far_as_it_can_be_resumed(layout: StateLayout) -> None:
    published = told_of(layout, MemoryBlockStore())
    output = published.driver.run(PROMPT, 40).output
    stream = (*PROMPT, *output)
    info, indexes, rules = (
        _info(published),
        published.driver.tiers.indexes,
        ReuseRules.of(layout, BlockGrid(BLOCK, GRID)),
    )
    chain = BlockChain.of(info.namespace, BLOCK, EncodedPrompt.of_text((*stream, 7)))
    position = indexes.match(indexes.epoch(info), chain, rules).position
    assert position > 100
    published.hear()
    assert published.credit(stream) == published.credit(stream, Medium.STORAGE) == position // SIZE * SIZE


def test_what_leaves_memory_is_published_of_the_store_and_then_no_more() -> None:
    store = MemoryBlockStore()
    published = told_of(store=store)
    published.driver.run(PROMPT)
    published.hear()
    published.driver.hot.empty()
    published.hear()
    assert (published.credit(PROMPT), published.credit(PROMPT, Medium.STORAGE)) == (0, 200)
    chain = BlockChain.of(_info(published).namespace, BLOCK, EncodedPrompt.of_text(PROMPT))
    store.delete(chain.prompt_keys()[3:4])
    assert published.hear().credit(PROMPT, Medium.STORAGE) == 3 * BLOCK


def test_a_prefix_is_withdrawn_with_its_last_snapshot() -> None:
    published = told_of(HYBRID)
    published.driver.run(PROMPT)
    assert published.hear().credit(PROMPT) > 100
    keys = published.driver.tiers.indexes.epoch(_info(published)).keys()
    published.driver.hot.drop([key for key in keys if isinstance(key, SnapshotKey)])
    assert published.hear().picture.blocks == {}
    assert published.driver.hot.usage().num_blocks > 0


def salted(driver: CacheDriver) -> None:
    driver.run(PROMPT, salt="alice")


def with_an_image(driver: CacheDriver) -> None:
    prompt = EncodedPrompt.of_text(PROMPT)
    prompt = replace(prompt, media=(MediaSpan(4, 30, b"i" * 32),))
    driver.model.open(SequenceId(99))
    driver.finish(Job(SequenceId(99), prompt, 4, driver.cache.begin(SequenceId(99), RequestId("r99"), TOY, prompt)))


def of_an_adapter(driver: CacheDriver) -> None:
    driver.cache.detach(TOY)
    driver.cache.attach(replace(driver.model.description, adapter_digest=b"a" * 32))
    driver.run(PROMPT)


def of_another_model(driver: CacheDriver) -> None:
    other = FakeModel(ModelSource(ModelId("other"), "q"), replace(OPTIONS, weights=2))
    driver.cache.attach(other.description)
    driver.cache.detach(TOY)
    driver.cache.attach(replace(other.description, id=ModelId("other"), runtime="new"))
    id = SequenceId(98)
    driver.model.open(id)
    prompt = EncodedPrompt.of_text(PROMPT)
    driver.finish(Job(id, prompt, 4, driver.cache.begin(id, RequestId("r98"), ModelId("other"), prompt)))


def with_the_servers_salt(driver: CacheDriver) -> None:
    driver.cache.detach(TOY)
    driver.cache.attach(driver.model.description, "of the model")
    driver.run(PROMPT)


@pytest.mark.parametrize("use", [salted, with_an_image, of_an_adapter, of_another_model, with_the_servers_salt])
def test_nothing_is_published_of(use: Callable[[CacheDriver], None]) -> None:
    published = told_of(store=MemoryBlockStore())
    use(published.driver)
    assert published.driver.hot.usage().num_blocks > 4
    published.hear()
    assert published.events == [BlocksCleared()]
    published.driver.run(tuple(range(500, 700)))
    assert not any(isinstance(event, BlocksStored) and 110 in event.token_ids for event in published.hear().events)


def test_a_cleared_cache_is_published_and_filled_again() -> None:
    published = told_of(store=MemoryBlockStore())
    published.driver.run(PROMPT)
    assert published.hear().credit(PROMPT)
    published.driver.cache.clear(None, None)
    assert published.hear().events[-1] == BlocksCleared()
    published.driver.run(PROMPT)
    assert published.hear().credit(PROMPT) == 200


def test_after_a_restart_the_store_is_published() -> None:
    store = MemoryBlockStore()
    told_of(store=store).driver.run(PROMPT)
    published = told_of(store=store).hear()
    assert (published.credit(PROMPT), published.credit(PROMPT, Medium.STORAGE)) == (0, 200)
    assert isinstance(published.events[0], BlocksCleared)


def test_other_weights_under_the_same_name_begin_anew() -> None:
    published = told_of()
    published.driver.run(PROMPT)
    assert published.hear().credit(PROMPT)
    published.driver.cache.detach(TOY)
    published.driver.cache.attach(replace(published.driver.model.description, weights_digest=b"w" * 32))
    assert published.hear().picture.blocks == {}
    published.driver.run(PROMPT)
    assert published.hear().credit(PROMPT) == 200


@pytest.mark.parametrize("most", [0, 3, 30])
def test_changes_that_are_too_many_to_note_are_looked_up_all_the_same(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_feed, "MAX_NOTED", most)
    published = told_of(store=MemoryBlockStore())
    published.driver.run(PROMPT)
    assert published.hear().credit(PROMPT) == 200
    published.driver.hot.empty()
    published.driver.run(tuple(range(500, 700)))
    published.hear()
    assert (published.credit(PROMPT), published.credit(tuple(range(500, 700)))) == (0, 200)


def _info(published: Told) -> NamespaceInfo:
    return published.driver.cache._info(published.driver.model.description, "")  # pyright: ignore[reportPrivateUsage]
