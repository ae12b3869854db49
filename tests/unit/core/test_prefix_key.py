from __future__ import annotations

import struct
from hashlib import sha256

from octavo.core.prefix_key import KeyChain, namespace, root_key


def keys(name: bytes, tokens: list[int], block_size: int = 4) -> list[bytes]:
    chain = KeyChain(name, block_size)
    chain.extend(tokens)
    return chain.keys


def test_an_adapter_and_a_salt_of_one_name_give_different_keys() -> None:
    """Elsewhere an adapter "x" and a salt "x" shared KV of different weights."""
    tokens = list(range(8))
    assert keys(namespace("w", adapter="x"), tokens) != keys(namespace("w", cache_salt="x"), tokens)
    assert namespace("w", "x", "") != namespace("w", "", "x")


def test_parts_cannot_flow_into_each_other() -> None:
    assert namespace("w", "ab", "c") != namespace("w", "a", "bc")
    assert namespace("wa", "b") != namespace("w", "ab")
    assert namespace("w", "a") != namespace("wa")
    # a part's text that imitates another part's encoding stays text
    assert namespace("w", adapter="x" + namespace("", cache_salt="y").decode()) != namespace("w", "x", "y")


def test_keys_are_the_documented_hash_and_the_same_in_every_process() -> None:
    name = namespace("weights", cache_salt="s")
    tokens = [1, 2, 70_000, 4, 5, 6, 7, 8, 9]
    first = sha256(root_key(name) + struct.pack("<4I", *tokens[:4])).digest()
    second = sha256(first + struct.pack("<4I", *tokens[4:8])).digest()
    assert keys(name, tokens) == [first, second]
    assert (
        root_key(b"").hex()
        == sha256((19).to_bytes(8, "little") + b"octavo prefix key 1" + (0).to_bytes(8, "little")).hexdigest()
    )


def test_only_full_blocks_have_keys_and_growing_changes_none() -> None:
    chain = KeyChain(b"", 4)
    tokens = [1, 2, 3]
    assert chain.extend(tokens) == 0
    tokens += [4, 5, 6, 7, 8, 9]
    assert chain.extend(tokens) == 2
    assert chain.keys == keys(b"", tokens)
    assert chain.tokens == [struct.pack("<4I", 1, 2, 3, 4), struct.pack("<4I", 5, 6, 7, 8)]


def test_a_key_depends_on_every_token_before_it() -> None:
    assert keys(b"", [1, 2, 3, 4, 5, 6, 7, 8])[1] != keys(b"", [9, 2, 3, 4, 5, 6, 7, 8])[1]


def test_a_forked_chain_goes_its_own_way() -> None:
    chain = KeyChain(b"", 2)
    chain.extend([1, 2])
    child = chain.fork()
    chain.extend([1, 2, 3, 4])
    child.extend([1, 2, 5, 6])
    assert chain.keys[0] == child.keys[0]
    assert chain.keys[1] != child.keys[1]
