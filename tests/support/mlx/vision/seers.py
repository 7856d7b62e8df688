"""Tiny models that see, each with a prompt of two images: ways to compute it, and its logits by mlx-vlm."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import mlx.core as mx

from adapters.mlx.batch import Row
from adapters.mlx.caches.leaves import new_caches
from adapters.mlx.loading.assembly import assemble
from adapters.mlx.loading.network import load_folder
from adapters.mlx.loading.vision import load_vision
from adapters.mlx.loading.weights_digest import Digests
from adapters.mlx.model import MlxModel
from adapters.mlx.speculation.drafting import forward
from adapters.mlx.vision.passes import chunk_pass
from adapters.mlx.vision.tower import VisionEncoder
from application.ports.compute import DecodeStart, Images
from domain.ids import ModelId, SequenceId
from domain.models.model_card import LoadOptions
from domain.prefix.prompt_content import MediaSpan
from domain.request.sampling import SamplingParams
from domain.scheduling.plan_step import next_chunk_end
from tests.support.engines.finish_load import finish_load
from tests.support.mlx.vision.tiny_seers import IMAGE, MARK, START, Seen, image_of, logits_by_mlx_vlm, write_seer
from tests.support.stores.state_replay import BLOCK, Captured, new_id

NUM_NEW = 6


@dataclass
class Seer:
    """One family's tiny model with a prompt of two images, and mlx-vlm's own network."""

    name: str
    peer: Any
    network: Any
    vision: VisionEncoder
    model: MlxModel
    seen: list[Seen]
    tokens: list[int]
    media: list[MediaSpan]
    images: Images


def make_seer(name: str, folder: Path, finish: Callable[[Path], object] = lambda _: None) -> Seer:
    """`finish`: changes the written folder."""
    peer = write_seer(name, folder)
    finish(folder)
    network, facts = finish_load(load_folder(folder, LoadOptions(dtype="float32"), Digests(b"seer")))
    vision = finish_load(load_vision(folder, facts.config, network, "float32"))
    model = finish_load(assemble(network, ModelId(name), facts, vision=vision))
    tokens, media, seen = list(range(3, 40)), list[MediaSpan](), list[Seen]()
    for seed in (0, 1):
        image, span = image_of(name, seed)
        media.append(replace(span, start=len(tokens) + 1, number=seed + 1))
        tokens += [START, *ids_of(span), 7 + seed, 9, 11, 2 * seed + 50]
        seen.append(image)
    images = {span.digest: model.encode_image(image.prepared) for span, image in zip(media, seen, strict=True)}
    return Seer(name, peer, network, vision, model, seen, tokens, media, images)


def ids_of(span: MediaSpan) -> list[int]:
    ids = [MARK] * span.length
    for start, end in span.embedded or ((0, span.length),):
        ids[start:end] = [IMAGE] * (end - start)
    return ids


def logits_of(seer: Seer, cuts: Sequence[int]) -> mx.array:
    """The logits of the whole prompt, computed in chunks that end at these positions."""
    row = Row(SequenceId(0), new_caches(seer.network), media=tuple(seer.media))
    found: list[mx.array] = []
    for end in [*cuts, len(seer.tokens)]:
        tokens = mx.array([seer.tokens[row.position : end]], dtype=mx.uint32)
        seen = chunk_pass(seer.network, seer.vision.scheme, tokens, row, seer.images)
        found.append(forward(seer.network, *seen)[0])
        row.position = end
    return mx.concatenate(found)


def open_seer(seer: Seer, captured: Captured | None = None) -> SequenceId:
    id = new_id()
    seer.model.open(id)
    seer.model.set_media(id, seer.media)
    if captured is not None:
        seer.model.restore(id, captured.position, captured.blocks, captured.snapshot)
    return id


def prefill(seer: Seer, id: SequenceId, end: int, images: Images | None = None) -> None:
    whole = [(span.start, span.end) for span in seer.media if seer.model.description.image_is_whole]
    while (start := seer.model.position(id)) < end:
        bound = next_chunk_end(start, end, BLOCK, whole=whole)
        seer.model.prefill(id, seer.tokens[start:bound], images=seer.images if images is None else images)


def start(seer: Seer, id: SequenceId, tokens: Sequence[int], images: Images) -> None:
    sampling = SamplingParams(temperature=0, num_logprobs=0)
    rest = tokens[seer.model.position(id) :]
    seer.model.start_decode(id, rest, DecodeStart(tuple(tokens), sampling, seed=1), images=images)


Answer: TypeAlias = list[tuple[int, float]]
"""Tokens, each with its log probability."""


def answers(seer: Seer, ids: Sequence[SequenceId], num_new: int = NUM_NEW) -> Mapping[SequenceId, Answer]:
    """The next tokens of sequences that decode together."""
    found: dict[SequenceId, Answer] = {id: [] for id in ids}
    for _ in range(num_new):
        for result in seer.model.decode(ids):
            assert result.error is None, result.error
            found[result.id].append((result.token_ids[0], result.logprobs[0].logprob))
    return found


def answer(seer: Seer, id: SequenceId) -> Answer:
    prefill(seer, id, len(seer.tokens) - 2)
    start(seer, id, seer.tokens, seer.images)
    (found,) = answers(seer, [id]).values()
    seer.model.close([id])
    return found


def peer_answer(seer: Seer) -> Answer:
    """Greedy decoding by whole passes of mlx-vlm."""
    tokens, found = list(seer.tokens), list[tuple[int, float]]()
    for _ in range(NUM_NEW):
        logits = logits_by_mlx_vlm(seer.name, seer.peer, tokens, seer.seen)[-1]
        token = int(mx.argmax(logits).item())
        found.append((token, float((logits - mx.logsumexp(logits))[token].item())))
        tokens.append(token)
    return found
