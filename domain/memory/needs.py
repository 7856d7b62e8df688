"""The memory that a load of one model needs beyond its weights: the one answer to "does it fit".

    preflight            a request alone               refused as too large, or computed once nothing else runs
    `cairn plan`         a batch at full contexts      the contexts and batches that fit on a machine
    admission, guard     the next sequence, a turn     waits or is admitted, evicts or preempts (`memory_demand`)

One of two steps takes the most: the one that prefills the last chunk, or the last decode step. A load without others
beside it, from left to right what its memory holds in each:

    last chunk    |--------- state of the prompt ---------|-- copy of the chunk --|---- work ----|-- images --|
      before it   |--------- state of the prompt ---------|---- tower pass ----|-- images --|
    last decode   |-- state of every choice at the end of its answer --|-- step of all choices --|

    Needs         |---------------- state ----------------|--- growth ---|---------- peak ------------|

* The last chunk stands for all, because neither states nor work fall with the position.
* The copy is the prefix cache's: every token of the chunk in windowed groups too, because each block keeps its own part
  of the window. It counts beside the work, because a backend that queues chunks ahead holds both.
* The tower passes over an image before its chunk is computed, when there is nothing to copy yet.
* A window holds a chunk beside itself until the next one, so the state of the prompt may be larger than the state with
  its answer. That is why growth may be 0.
* Reused tokens take memory like all others. Choices share none, because all of them may grow at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from domain.memory.shape import ImageSizes, MemoryShape


class Needs(NamedTuple):
    """Bytes. `state`: of the prompt, and of the sequences beside it at their ends. `growth`: from the prompt's state to
    those of all answers. `peak`: the most that one step takes beyond both, for a moment."""

    state: int
    growth: int
    peak: int

    @property
    def kept(self) -> int:
        """The most that states take by themselves."""
        return self.state + self.growth

    @property
    def total(self) -> int:
        return self.state + self.growth + self.peak


@dataclass(frozen=True, slots=True)
class Load:
    """A request, and others beside it, in tokens. `num_new`: of each of its `num_choices` answers. `chunk`: most tokens
    that are prefilled at once, an image that no chunk may cut included. `num_beside`: sequences of the same size that
    decode meanwhile. `is_scored`: log probabilities of the whole prompt are returned, so that the logits of every token
    are computed."""

    num_prompt: int
    num_new: int = 0
    chunk: int = 1
    num_choices: int = 1
    num_beside: int = 0
    is_scored: bool = False
    images: ImageSizes = ImageSizes()


class Chunk(NamedTuple):
    """A chunk of `length` tokens of a prompt, up to position `end`. `longest`: of the chunks before it. `images`: those
    that the tower has yet to pass over."""

    shape: MemoryShape
    length: int
    end: int
    longest: int
    is_scored: bool = False
    images: ImageSizes = ImageSizes()

    @property
    def held_bytes(self) -> int:
        """The state before it."""
        start = self.end - self.length
        return self.shape.state_bytes(start, min(self.longest, start))

    @property
    def growth_bytes(self) -> int:
        # A short chunk leaves less beside a window than a long one before it.
        return max(0, self.shape.state_bytes(self.end, self.length) - self.held_bytes)

    @property
    def copy_bytes(self) -> int:
        return self.shape.copy_bytes(self.length)

    @property
    def peak_bytes(self) -> int:
        """The most beyond growth and copy: the work of the widest layer with the features that its tokens are replaced
        by, or a pass of the tower, which comes before the copy."""
        logits = {"num_logits": self.length} if self.is_scored else {}
        work = self.shape.peak_bytes(self.length, self.end, **logits)
        work += self.shape.feature_bytes(self.images.largest, self.length)
        return max(work, self.shape.tower_bytes(self.images.largest, self.length) - self.copy_bytes)


def turn_bytes(chunks: Sequence[Chunk], budget: int) -> int:
    """Returns the most that one prefill turn takes beyond the states before it, of any chunks among these with up to
    `budget` tokens in all. Growth and copies add up. Peaks do not, because chunks are computed one after the other."""
    together, left = 0, budget
    kept = sorted((chunk.length, chunk.growth_bytes + chunk.copy_bytes) for chunk in chunks)
    for length, size_bytes in kept:  # the shortest first: more of them fit in
        if left <= 0:
            break
        together, left = together + size_bytes, left - length
    largest = max((size_bytes for _, size_bytes in kept), default=0)
    pixels = sum(chunk.shape.pixel_bytes(chunk.images.held) for chunk in chunks)  # of all, whichever has the turn
    return max(together, largest) + max((chunk.peak_bytes for chunk in chunks), default=0) + pixels


def needed(shape: MemoryShape, load: Load) -> Needs:
    """Returns the needs of a load; their total never falls with more tokens, choices or sequences beside."""
    num_prompt, end = load.num_prompt, load.num_prompt + load.num_new
    length = min(load.chunk, max(num_prompt, 1))
    images = ImageSizes(min(load.images.largest, num_prompt), min(load.images.held, num_prompt))
    last = Chunk(shape, length, max(num_prompt, length), length, load.is_scored, images)
    prompt, answers = shape.state_bytes(num_prompt, length), load.num_choices * shape.state_bytes(end)
    beside = load.num_beside * max(prompt, shape.state_bytes(end))
    prefill = last.held_bytes + turn_bytes([last], length)
    prefill += shape.feature_bytes(images.largest, 0)  # of the image before, which may end in the chunk
    prefill += shape.decode_bytes(load.num_beside, end) if load.num_beside else 0
    decode = answers + shape.decode_bytes(load.num_choices + load.num_beside, end)
    growth = max(0, answers - prompt)
    return Needs(beside + prompt, growth, max(prefill, decode) - prompt - growth)
