"""The tokens a head's drafts get accepted: greedy answers of the trunk on held-out chats, drafted at each position."""

from collections.abc import Mapping

import torch
from torch import Tensor

from training.model.head import Head
from training.model.network import Network
from training.tasks import Draw, Material, write_conversation
from training.text.encoder import Encoder

_SEED = 424_243
"""Not a seed of any worker."""

_PROMPT_TOKENS = 512
_ANSWER_TOKENS = 64
_ANSWERS_A_CHAT = 4
_CHATS_A_PASS = 96

Drafts = dict[str, tuple[int, list[float]]]
"""By task: the number of answers, and for drafts of 1, 2 ... tokens how many of them were accepted a step."""


@torch.no_grad()
def draft_lengths(
    network: Network,
    head: Head,
    weights: Mapping[str, Tensor],
    material: Material,
    encoder: Encoder,
    num_chats: int,
    depth: int,
) -> Drafts:
    """Chats are cut before one of their answers, which the trunk then writes itself."""
    device = weights["model.embed_tokens.weight"].device
    prompts = _prompts(Draw(_SEED, material), encoder, num_chats)
    steps: dict[str, Tensor] = {}
    counts: dict[str, int] = {}
    for at in range(0, len(prompts), _CHATS_A_PASS):
        tasks, beginnings = zip(*prompts[at : at + _CHATS_A_PASS], strict=True)
        ids, ends = _answered(network, weights, beginnings, encoder, device)
        trunk = network.hidden_states(ids, weights)
        hidden = head.hidden_states(ids, trunk, weights, depth)
        guesses = [head.logits(states.flatten(0, 1), weights).argmax(-1).view(ids.shape) for states in hidden]
        is_right = torch.stack([guess[:, :-1] == ids[:, 1:] for guess in guesses]).cpu()
        for row, task in enumerate(tasks):
            found = _accepted(is_right[:, row], len(beginnings[row]), int(ends[row]))
            steps[task] = steps.get(task, 0) + found
            counts[task] = counts.get(task, 0) + 1
    steps["all"], counts["all"] = sum(steps.values()), len(prompts)
    return {
        task: (counts[task], [round(accepted / max(1, taken), 2) for accepted, taken in steps[task].tolist()])
        for task in steps
    }


def _prompts(draw: Draw, encoder: Encoder, num_chats: int) -> list[tuple[str, list[int]]]:
    """Pairs of a task and a chat that ends where the answer begins; no task has more than its share."""
    found: dict[str, list[list[int]]] = {}
    for _ in range(num_chats):
        chat = write_conversation(draw, _PROMPT_TOKENS, encoder)
        for task, start, _ in chat.answers[-_ANSWERS_A_CHAT:]:
            found.setdefault(task, []).append(chat.ids[:start])
    share = -(-num_chats // len(found))
    return [(task, prompt) for task, prompts in sorted(found.items()) for prompt in prompts[:share]]


def _answered(
    network: Network,
    weights: Mapping[str, Tensor],
    prompts: tuple[list[int], ...],
    encoder: Encoder,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """The prompts with greedy answers, [rows, tokens], and the position of each one's end."""
    width = max(map(len, prompts)) + _ANSWER_TOKENS
    ids = torch.tensor([prompt + [encoder.text_end] * (width - len(prompt)) for prompt in prompts], device=device)
    first = torch.tensor([len(prompt) for prompt in prompts], device=device)
    rows = torch.arange(len(prompts), device=device)
    ends = first + _ANSWER_TOKENS - 1
    for at in range(_ANSWER_TOKENS):
        ids[rows, first + at] = network.logits(ids, weights, rows * width + first + at - 1).argmax(-1)
        is_end = (ids[rows, first + at] == encoder.turn_end) & (ends > first + at)
        ends = torch.where(is_end, first + at, ends)
    return ids, ends.cpu()


def _accepted(is_right: Tensor, start: int, end: int) -> Tensor:
    """[depths, 2]: accepted tokens and steps for drafts of each length, over the answer [start, end)."""
    found = torch.zeros(len(is_right), 2, dtype=torch.int64)
    for depth in range(len(is_right)):
        at = start
        while at < end:
            accepted = 0
            while accepted <= depth and at + accepted + 1 < end and is_right[accepted, at + accepted]:
                accepted += 1
            found[depth] += torch.tensor([accepted, 1])
            at += 1 + accepted
    return found


__all__ = ("Drafts", "draft_lengths")
