"""Block chains: each block's hash covers everything before it, so equal hashes mean equal prefixes.

    hash_i = SHA-256(hash_{i-1} || key ids of block i as uint32 little endian || digests of the images it touches)

hash_{-1} is the root. All 32 bytes are kept: a stored block may live for weeks and be shared, so collisions must stay
out of reach. Key ids of an image have 31 bits each, which can be forged where a block holds few of them; its digest
cannot. The number of ids is known, from the block size or the key of a snapshot, so no digest can be taken for ids.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256

from domain.id_row import ID_BYTES, IdRow
from domain.ids import BlockHash
from domain.prefix.explanation import common_length
from domain.prefix.prompt_content import EncodedPrompt, MediaSpan
from domain.prefix.record import BlockKey, Namespace, SnapshotKey

NO_IDS = IdRow()


def block_hash(parent: BlockHash, key_ids: Iterable[int], digests: bytes = b"") -> BlockHash:
    """Returns the hash of one full block. `digests`: of the images that it touches, joined."""
    return BlockHash(sha256(parent + IdRow(key_ids).to_bytes() + digests).digest())


def snapshot_key(
    namespace: Namespace, parent: BlockHash, partial_ids: Sequence[int], digests: bytes = b""
) -> SnapshotKey:
    """Returns the key of the snapshot taken `partial_ids` after the end of the block `parent`. `digests`: of the images
    that they touch, joined."""
    digest = sha256(parent + IdRow(partial_ids).to_bytes() + digests).digest()
    return SnapshotKey(namespace, parent, len(partial_ids), digest)


class BlockChain:
    """One token stream as the prefix cache knows it: a prompt, then what was generated, cut into hashed blocks.
    `prompt`: its key ids; `media`: its images.

    `hashes[i]` belongs to the ids [i * block_size, (i + 1) * block_size). Splitting what is generated over several
    `feed` calls changes nothing. One thread feeds it; existing items never change, so other threads may read them.
    """

    __slots__ = ("_keys", "_output_ids", "block_size", "hashes", "media", "namespace", "prompt")

    def __init__(
        self, namespace: Namespace, block_size: int, prompt: IdRow = NO_IDS, media: Sequence[MediaSpan] = ()
    ) -> None:
        self.namespace = namespace
        self.media = tuple(media)
        self.block_size = block_size
        self.prompt = prompt
        self.hashes: list[BlockHash] = []
        self._keys: tuple[BlockKey, ...] | None = None
        self._output_ids: list[int] = []
        self._hash_full_blocks()

    @classmethod
    def of(cls, namespace: Namespace, block_size: int, prompt: EncodedPrompt) -> "BlockChain":
        """Returns the chain of a prompt."""
        return cls(namespace, block_size, prompt.key_ids, prompt.media)

    @property
    def num_prompt(self) -> int:
        return len(self.prompt)

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + len(self._output_ids)

    def parent(self, num_blocks: int) -> BlockHash:
        """Returns the parent hash of a record after `num_blocks` full blocks: the last block's hash, or the root."""
        return self.hashes[num_blocks - 1] if num_blocks else BlockHash(self.namespace)

    def ends(self) -> tuple[BlockHash, ...]:
        """The root, then the hashes of the prompt's full blocks: the parents of all that can follow."""
        return BlockHash(self.namespace), *self.hashes[: self.num_prompt // self.block_size]

    def prompt_keys(self) -> tuple[BlockKey, ...]:
        """Keys of the prompt's full blocks; made once, because every tier looks them up."""
        if self._keys is None:
            self._keys = tuple([BlockKey(self.namespace, hash) for hash in self.ends()[1:]])
        return self._keys

    def key_ids(self, start: int, end: int) -> IdRow:
        num_prompt = self.num_prompt
        own = self.prompt[start:end]
        if end <= num_prompt:
            return own
        return own.followed_by(self._output_ids[max(0, start - num_prompt) : end - num_prompt])

    def digests(self, start: int, end: int) -> bytes:
        """The digests of the images that the tokens [start, end) touch, joined."""
        return b"".join([span.digest for span in self.media if span.start < end and start < span.end])

    def snapshot_key(self, position: int) -> SnapshotKey:
        """Returns the key of a snapshot taken at `position`."""
        num_blocks = position // self.block_size
        start = num_blocks * self.block_size
        parent, digests = self.parent(num_blocks), self.digests(start, position)
        return snapshot_key(self.namespace, parent, self.key_ids(start, position), digests)

    def num_shared(self, other: "BlockChain") -> int:
        """Returns the number of leading tokens that both streams have in common."""
        if self.namespace != other.namespace:
            return 0
        start = common_length(self.hashes, other.hashes) * self.block_size
        end = start + self.block_size
        shared = start + common_length(self.key_ids(start, end), other.key_ids(start, end))
        theirs = {(span.start, span.digest) for span in other.media}
        forged = (span.start for span in self.media if span.end > start and (span.start, span.digest) not in theirs)
        return min(shared, max(start, min(forged, default=shared)))

    def feed(self, token_ids: Sequence[int]) -> list[BlockHash]:
        """Appends generated tokens; returns the hashes of the blocks that became full."""
        self._output_ids += token_ids
        return self._hash_full_blocks()

    def _hash_full_blocks(self) -> list[BlockHash]:
        size, first = self.block_size, len(self.hashes)
        end = self.num_tokens // size * size
        if end == first * size:  # as after most tokens
            return []
        data = memoryview(self.key_ids(first * size, end).to_bytes())
        for at in range(0, len(data), ID_BYTES * size):
            index = len(self.hashes)
            hasher = sha256(self.parent(index))
            hasher.update(data[at : at + ID_BYTES * size])
            hasher.update(self.digests(index * size, (index + 1) * size))
            self.hashes.append(BlockHash(hasher.digest()))
        return self.hashes[first:]
