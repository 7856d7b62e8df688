"""Explanations: why a prompt's prefix was reused as far as it was, and no further."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import groupby

from domain.prefix.prompt_content import FIRST_MEDIA_ID, ForkPoint, MediaSpan

TIER_NAMES = ("live", "hot", "store", "shared")
"""The tiers that state can come from, fastest first, as the response header and metrics name them."""

IMAGE_MARK = "[image]"
CONTEXT_TOKENS = 12
"""Tokens shown on either side of a divergence."""


class StopReason(Enum):
    """The reason for which the reused prefix ended."""

    LAST_TOKEN = "last-token"
    """Everything was reused except the last prompt token, which is always computed."""
    NEVER_SEEN = "never-seen"
    EVICTED = "evicted"
    NO_SNAPSHOT = "no-snapshot"
    """More blocks are kept, but the recurrent layers have no later snapshot."""
    PARTIAL_BLOCK = "partial-block"
    """The prompt ends inside a stored block, and a block is restored whole or not at all."""
    OFF_GRID = "off-grid"
    """Exact mode resumes only at grid positions."""
    OTHER_FINGERPRINT = "other-fingerprint"
    """The prefix was stored for this model's name or weights, with other weights, layout, settings or version."""
    SLOW_STORE = "slow-store"
    """The store did not answer in time, or has not since a read hung: only memory was searched."""
    SLOW_SHARED = "slow-shared"
    """What the shared store has, if anything, came too late: computing was quicker than waiting."""
    UNREADABLE = "unreadable"
    """The records that were found could not be read any more, or do not fit the model. They are dropped."""
    RESTORE_FAILED = "restore-failed"
    """Restoring what was found failed this time, for lack of memory for example. The records are kept."""
    NO_ROOM = "no-room"
    """Memory has no room for the records that were found beside the state restored from them."""
    UNSUPPORTED_LAYOUT = "unsupported-layout"
    """The model has a cache class that cannot be captured, or a flaw that its load found: nothing is reused."""
    DISABLED = "disabled"
    SCORED = "scored"
    """The request asks for log probabilities of its prompt: every token is computed, whatever is stored."""


TAKES_NO_PART = frozenset(
    reason.value for reason in (StopReason.UNSUPPORTED_LAYOUT, StopReason.DISABLED, StopReason.SCORED)
)
"""The reasons for which nothing could have been reused: hit rates do not count such a lookup."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first token that differs from the nearest stored chain, with the tokens around it on both sides, as key ids.

    `before_ids` are common to both; the other two runs begin with the differing tokens. `stored_ids` may belong to
    another request: None where the client must not see it. `image`: the number of the prompt's image that differs; 0
    for text. Texts are empty until `Explanation.with_text`.
    """

    position: int
    before_ids: tuple[int, ...]
    prompt_ids: tuple[int, ...]
    stored_ids: tuple[int, ...] | None
    before: str = ""
    prompt: str = ""
    stored: str | None = ""
    image: int = 0


@dataclass(frozen=True, slots=True)
class Explanation:
    """The result of one lookup, for clients and operators. `num_prompt`: tokens reused from all tiers and computed.

    `reused`: tokens by the name of the tier that they come from; tiers that gave none are left out. `stopped_at`: the
    position up to which state was reused. `num_known`: how far blocks of this prompt are stored
    (at least `stopped_at` rounded down to a block). `nearest_fork`: the last fork point at or before the stop.
    """

    num_prompt: int
    reason: StopReason
    reused: Mapping[str, int] = field(default_factory=dict[str, int])
    num_known: int = 0
    divergence: Divergence | None = None
    nearest_fork: ForkPoint | None = None
    note: str = ""

    @property
    def stopped_at(self) -> int:
        return sum(self.reused.values())

    @property
    def num_computed(self) -> int:
        return self.num_prompt - self.stopped_at

    def header(self) -> str:
        """Returns the line for `x-cairn-cache`: `reused=768; live=0; hot=512; store=256; computed=12;
        reason=last-token`. The shared tier is named where it gave something."""
        fields = [
            f"reused={self.stopped_at}",
            *(f"{tier}={self.reused.get(tier, 0)}" for tier in TIER_NAMES if tier != "shared" or tier in self.reused),
            f"computed={self.num_computed}",
            f"reason={self.reason.value}",
        ]
        if self.divergence is not None:
            fields.append(f"diverged={self.divergence.position}")
            fields += [f"image={self.divergence.image}"] if self.divergence.image else []
        return "; ".join(fields)

    def scored(self) -> "Explanation":
        """Returns the explanation for a request that asks for log probabilities of its prompt."""
        if self.reason in (StopReason.DISABLED, StopReason.UNSUPPORTED_LAYOUT):
            return self
        return Explanation(self.num_prompt, StopReason.SCORED, num_known=self.num_known)

    def without_stored(self) -> "Explanation":
        """Returns a copy without stored tokens or text: positions and the prompt's own text stay."""
        found = self.divergence
        return self if found is None else replace(self, divergence=replace(found, stored_ids=None, stored=None))

    def without_tokens(self) -> "Explanation":
        """Returns a copy with positions and numbers only, without tokens or text of either side."""
        if self.divergence is None:
            return self
        found = Divergence(self.divergence.position, (), (), None, stored=None, image=self.divergence.image)
        return replace(self, divergence=found)

    def with_text(self, decode: Callable[[Sequence[int]], str]) -> "Explanation":
        """Returns a copy with the divergence's tokens as text."""
        if self.divergence is None:
            return self
        found = self.divergence
        stored = _text(found.stored_ids, decode) if found.stored_ids is not None else None
        before, prompt = _text(found.before_ids, decode), _text(found.prompt_ids, decode)
        return replace(self, divergence=replace(found, before=before, prompt=prompt, stored=stored))


def _text(key_ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> str:
    """Returns key ids as text, with a mark for each image."""
    runs = groupby(key_ids, lambda id: id >= FIRST_MEDIA_ID)
    return "".join(IMAGE_MARK if is_media else decode(tuple(run)) for is_media, run in runs)


def common_length(left: Sequence[object], right: Sequence[object]) -> int:
    """Returns the number of leading elements that two runs share."""
    limit = min(len(left), len(right))
    if left[:limit] == right[:limit]:
        return limit
    low, high = 0, limit  # equal up to `low`, different within `high`
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low


def find_divergence(
    key_ids: Sequence[int], start: int, stored: Sequence[Sequence[int]], media: Sequence[MediaSpan] = ()
) -> Divergence | None:
    """Compares the prompt from `start` with every run stored there; returns the point at which it diverges from the
    nearest one. `media`: the prompt's images.

    None when nothing is stored there, when the nearest run and the prompt differ in length only, or when they have no
    token in common from the start: then the prompts are unrelated.
    """
    longest = max(map(len, stored), default=0)
    rest = tuple(key_ids[start : start + longest + 1])  # one more id: a longer run differs from one that ends here
    length, run = max(((common_length(rest, run), tuple(run)) for run in stored), default=(0, ()))
    if length in (len(rest), len(run)):
        return None
    at = start + length
    if at == 0:
        return None
    return Divergence(
        position=at,
        before_ids=tuple(key_ids[max(0, at - CONTEXT_TOKENS) : at]),
        prompt_ids=tuple(key_ids[at : at + CONTEXT_TOKENS]),
        stored_ids=run[length : length + CONTEXT_TOKENS],
        image=next((span.number for span in media if span.start <= at < span.end), 0),
    )


def compared_with_stored(
    found: Explanation, key_ids: Sequence[int], stored: Sequence[Sequence[int]], media: Sequence[MediaSpan] = ()
) -> Explanation:
    """Returns a copy that compares the prompt with the runs of key ids stored after the known blocks: with the position
    where it diverges from the nearest run, or with PARTIAL_BLOCK where the prompt ends inside one."""
    divergence = find_divergence(key_ids, found.num_known, stored, media)
    if divergence is not None or found.reason is not StopReason.NEVER_SEEN:
        return replace(found, divergence=divergence)
    num_rest = len(key_ids) - found.num_known
    rest = tuple(key_ids[found.num_known :]) if any(len(run) > num_rest > 0 for run in stored) else ()
    if rest and any(len(run) > num_rest and tuple(run[:num_rest]) == rest for run in stored):
        return replace(found, reason=StopReason.PARTIAL_BLOCK)
    return found


def nearest_fork(fork_points: Sequence[ForkPoint], position: int) -> ForkPoint | None:
    """Returns the last fork point at or before `position`."""
    earlier = [fork for fork in fork_points if fork.position <= position]
    return max(earlier, key=lambda fork: fork.position, default=None)


def explanation_sentence(found: Explanation) -> str:
    """Returns the explanation as one sentence; never empty, and without text of a prompt."""
    return _SENTENCES[found.reason](found)


def _never_seen(found: Explanation) -> str:
    if (apart := found.divergence) is not None:
        at = f"From token {apart.position} on"
        if apart.image:
            return f"{at} image {apart.image} of the prompt differs from what is stored."
        return f"{at} the prompt differs from what is stored."
    why = f": {found.note}" if found.note else ""
    if found.stopped_at == 0:
        return f"Nothing that begins like this prompt is stored{why}."
    return f"Nothing that goes on like this prompt after token {found.stopped_at} is stored{why}."


def _no_snapshot(found: Explanation) -> str:
    return (
        f"Blocks are stored up to token {found.num_known}, but the recurrent layers have no snapshot after token"
        f" {found.stopped_at} to go on from."
    )


def _partial_block(found: Explanation) -> str:
    return (
        "The prompt ends inside a stored block, and a block is reused whole or not at all; the last one before ends at"
        f" token {found.stopped_at}."
    )


def _unsupported(found: Explanation) -> str:
    return f"The model is served without reuse: {found.note or 'its cache cannot be captured'}."


_SENTENCES: Mapping[StopReason, Callable[[Explanation], str]] = {
    StopReason.LAST_TOKEN: lambda _: "Everything is reused but the last token, which is always computed.",
    StopReason.NEVER_SEEN: _never_seen,
    StopReason.EVICTED: lambda found: f"The block after token {found.num_known} was stored once and has been evicted.",
    StopReason.NO_SNAPSHOT: _no_snapshot,
    StopReason.PARTIAL_BLOCK: _partial_block,
    StopReason.OFF_GRID: lambda found: (
        f"Exact mode resumes only at multiples of the prefill grid; the last usable one is token {found.stopped_at}."
    ),
    StopReason.OTHER_FINGERPRINT: lambda found: (
        f"The prompt is stored, but not for this model as it runs now: {found.note or 'the fingerprint differs'}."
    ),
    StopReason.SLOW_STORE: lambda found: (
        f"The store did not answer in time, so everything after token {found.stopped_at} is computed again."
    ),
    StopReason.SLOW_SHARED: lambda found: (
        f"What the shared store has after token {found.stopped_at}, if anything, came too late: it is computed."
    ),
    StopReason.UNREADABLE: lambda _: "The stored state could not be read or restored, so it is computed again.",
    StopReason.RESTORE_FAILED: lambda _: "Restoring the stored state failed this time, so it is computed; it is kept.",
    StopReason.NO_ROOM: lambda _: "Memory has no room for what is stored beside a state made of it: it is computed.",
    StopReason.UNSUPPORTED_LAYOUT: _unsupported,
    StopReason.DISABLED: lambda found: f"Nothing is reused: {found.note or 'prefix reuse is off'}.",
    StopReason.SCORED: lambda _: "Nothing is reused: log probabilities of the prompt need every token computed.",
}
