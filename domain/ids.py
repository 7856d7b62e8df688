"""Identifiers. NewTypes, so that a model name cannot be passed where a block hash is meant."""

from typing import NewType

RequestId = NewType("RequestId", str)
"""Unique for the life of the process; shown to clients and in traces."""

NO_REQUEST = RequestId("")
"""The id of no request, for fields that require one."""

ModelId = NewType("ModelId", str)
"""The name a client sends. Never part of a block hash: two models may share a name over time."""

SequenceId = NewType("SequenceId", int)
"""One token stream being computed, numbered by the engine loop in order of arrival."""

BlockHash = NewType("BlockHash", bytes)
"""A 32-byte chained SHA-256; the root hash of a namespace has the same type."""

GroupIndex = NewType("GroupIndex", int)
"""Position of a state group in its StateLayout."""
