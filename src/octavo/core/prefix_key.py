"""Prefix keys: a name for the KV of a full block that is the same in every process and on every machine.

key of block i = SHA-256(key of block i - 1, or the root, + the block's token ids as little-endian uint32)
root           = SHA-256(version, length of the namespace, namespace)

Refuses to know blocks. Two prompts share a key only if namespace and all tokens up to the block's end are equal;
the namespace is made of typed, length-prefixed parts, so that adapter "x" and salt "x" never meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from struct import Struct

_VERSION = b"octavo prefix key 1"


def namespace(fingerprint: str, adapter: str = "", cache_salt: str = "") -> bytes:
    """What separates equal tokens of different KV: the weights, the adapter, the client's salt. Empty parts drop."""
    parts = ((b"weights", fingerprint), (b"adapter", adapter), (b"salt", cache_salt))
    return b"".join(_prefixed(kind) + _prefixed(text.encode("utf-8", "surrogatepass")) for kind, text in parts if text)


def root_key(name: bytes) -> bytes:
    """The parent of every first block in the namespace `name`."""
    return sha256(_prefixed(_VERSION) + _prefixed(name)).digest()


class KeyChain:
    """The keys of one sequence's full blocks, computed when first asked for and never again."""

    __slots__ = ("_block_size", "_pack", "_root", "keys", "tokens")

    def __init__(self, name: bytes, block_size: int) -> None:
        self._root = root_key(name)
        self._block_size = block_size
        self._pack = Struct(f"<{block_size}I").pack  # a third of the time of array("I", ...) for one block
        self.keys: list[bytes] = []  # of blocks 0 .. len(keys) - 1
        self.tokens: list[bytes] = []  # the token ids of the same blocks

    def extend(self, token_ids: Sequence[int]) -> int:
        """Computes the keys still missing of the full blocks of `token_ids`; returns the number of full blocks."""
        size, pack, keys, tokens = self._block_size, self._pack, self.keys, self.tokens
        known, total = len(keys), len(token_ids) // size
        if known < total:
            parent = keys[-1] if keys else self._root
            for begin in range(known * size, total * size, size):
                piece = pack(*token_ids[begin : begin + size])
                parent = sha256(parent + piece).digest()
                keys.append(parent)
                tokens.append(piece)
        return total

    def fork(self) -> KeyChain:
        """A chain of its own with the same keys so far."""
        child = KeyChain.__new__(KeyChain)
        child._root, child._block_size, child._pack = self._root, self._block_size, self._pack
        child.keys, child.tokens = self.keys.copy(), self.tokens.copy()
        return child


def _prefixed(part: bytes) -> bytes:
    return len(part).to_bytes(8, "little") + part
