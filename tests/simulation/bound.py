"""What must and what may be reused, from the history of requests alone.

Never more than some other request of the same weights, layout and salt had in common. Where storage is ample, never
less than the stated bound on recomputing.

Take a prompt that shares L tokens with one completed before (same weights, same salt, no crash in between). Of these at
least so many are reused (in exact mode all of it down to the grid):
* attention only: L down to a block boundary;
* recurrent layers: all L where the earlier prompt ends there; else L - d - 2 grid, d being the distance from L to that
  end (the snapshot lattice), if the earlier prompt was computed from its start.
With recurrent layers a promise ends when a later request on its chain ends, because snapshots are thinned.
"""

from collections.abc import Collection
from dataclasses import dataclass

from application.ports.engine import Submission
from domain.ids import RequestId
from domain.prefix.explanation import common_length
from tests.simulation.world import BLOCK, GRID, Plan

Key = tuple[int, str, str]


@dataclass(frozen=True)
class Promise:
    """`tokens` of a prompt must be reused, unless `version` of its key has changed meanwhile."""

    key: Key
    tokens: int
    version: int


@dataclass(frozen=True)
class Completed:
    prompt: tuple[int, ...]
    is_whole: bool


class ReuseBound:
    """Remembers completed prompts by what must not be mixed: weights, layout and salt."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._done: dict[Key, list[Completed]] = {}
        self._versions: dict[Key, int] = {}
        self._streams: dict[Key, dict[RequestId, tuple[int, ...]]] = {}
        self._excused: set[RequestId] = set()

    def submitted(self, id: RequestId, submission: Submission) -> None:
        """From now on others of its key may profit from this choice's prompt."""
        self._streams.setdefault(self._key(submission), {})[id] = submission.prompt.key_ids

    def allowance(self, id: RequestId, submission: Submission) -> int:
        """Tokens that some other choice of the same key had in common with this one: no more can be reused."""
        prompt = submission.prompt.key_ids
        if id in self._excused:
            return len(prompt)
        streams = self._streams[self._key(submission)]
        others = [tokens for other, tokens in streams.items() if other != id]
        return max([0, *(common_length(prompt, tokens) for tokens in others)])

    def promise(self, submission: Submission) -> Promise:
        """Tokens of this prompt that must not be computed again; 0 where nothing is promised."""
        key, layout = self._key(submission), self._plan.models[submission.model].layout
        tokens = 0
        # Where no chunk may end inside an image, one may lack the snapshot that it should have taken there.
        is_cut_anywhere = not (submission.prompt.media and self._plan.models[submission.model].image_is_whole)
        if self._plan.is_ample and layout.is_reusable and is_cut_anywhere:
            prompt = submission.prompt.key_ids
            earlier = self._done.get(key, [])
            tokens = max([0, *(self._reusable(prompt, other, layout.needs_snapshots) for other in earlier)])
        return Promise(key, tokens, self._versions.get(key, 0))

    def holds(self, promise: Promise) -> bool:
        return promise.version == self._versions.get(promise.key, 0)

    def ended(
        self, id: RequestId, submission: Submission, output: list[int], *, is_complete: bool, num_reused: int
    ) -> None:
        """A request ended, one way or another."""
        key, layout = self._key(submission), self._plan.models[submission.model].layout
        prompt = submission.prompt.key_ids
        self._streams[key][id] = (*prompt, *output)
        done = self._done.setdefault(key, [])
        if layout.needs_snapshots:
            done[:] = [other for other in done if other.prompt[0] != prompt[0]]
            self._versions[key] = self._versions.get(key, 0) + 1
        if is_complete and id not in self._excused:  # who ran while it was cleared leaves nothing
            done.append(Completed(prompt, num_reused == 0))

    def clear(self, salt: str | None, still_open: Collection[RequestId]) -> None:
        """Somebody cleared what this tenant (None: anybody) has. Who is open may have reused some of it already, and
        may still begin anew."""
        for key in [key for key in self._versions.keys() | self._streams.keys() if salt in (None, key[2])]:
            self._versions[key] = self._versions.get(key, 0) + 1
            self._done.pop(key, None)
            streams = self._streams.get(key, {})
            self._streams[key] = {id: tokens for id, tokens in streams.items() if id in still_open}
            self._excused |= self._streams[key].keys()

    def forget(self) -> None:
        """The server crashed; what was not written yet is lost."""
        for key in self._done:
            self._versions[key] = self._versions.get(key, 0) + 1
        self._done.clear()

    def _key(self, submission: Submission) -> Key:
        options = self._plan.models[submission.model]
        return options.weights, options.layout.describe(), submission.cache_salt

    def _reusable(self, prompt: tuple[int, ...], other: Completed, needs_snapshots: bool) -> int:
        end = len(other.prompt) - 1
        shared = min(common_length(prompt, other.prompt), len(prompt) - 1, end)
        step = GRID if self._plan.is_exact else 1
        if not needs_snapshots:
            return shared // max(step, BLOCK) * max(step, BLOCK)
        if shared == end:
            return shared // step * step
        return max(0, shared - (end - shared) - 2 * GRID) // step * step if other.is_whole else 0
