"""Why a prompt hit the prefix cache as far as it did, and no further: the words behind `cached_tokens`.

Remembers, bounded, the last prompts of each tenant and the keys evicted last. Called once a request, when it starts.
Refuses to compare prompts of different tenants: to say that somebody else has sent the same prompt would be the very
leak that salts close. Knows no blocks.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from octavo.core.prefix_key import KeyChain
from octavo.outputs import CacheReason

MAX_TENANTS = 64
MAX_PROMPTS = 16  # of one tenant
MAX_PROMPT_TOKENS = 4096  # of each are remembered
MAX_EVICTED = 2**14  # about 4 MB
_TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class _Prompt:
    salt: bytes
    tokens: bytes


class PrefixHistory:
    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._prompts: OrderedDict[bytes, deque[_Prompt]] = OrderedDict()  # by tenant, longest silent first
        self._evicted: OrderedDict[bytes, float] = OrderedDict()  # key -> when; oldest first

    def note_evicted(self, keys: Iterable[bytes], now: float) -> None:
        for key in keys:
            self._evicted[key] = now
            self._evicted.move_to_end(key)
        while len(self._evicted) > MAX_EVICTED:
            self._evicted.popitem(last=False)

    def explain(
        self, *, tenant: bytes, salt: bytes, token_ids: Sequence[int], keys: KeyChain, num_hits: int, now: float
    ) -> tuple[CacheReason, int | None, float | None]:
        """(reason, first differing token, seconds since the eviction) of a prompt that found `num_hits` tokens.

        `salt`: the whole namespace, which tells prompts of one tenant apart. Remembers the prompt.
        """
        tokens = array("I", token_ids[:MAX_PROMPT_TOKENS]).tobytes()
        try:
            return self._explain(_Prompt(salt, tokens), tenant, len(token_ids), keys, num_hits, now)
        finally:
            self._remember(tenant, _Prompt(salt, tokens))

    def _explain(
        self, prompt: _Prompt, tenant: bytes, num_tokens: int, keys: KeyChain, num_hits: int, now: float
    ) -> tuple[CacheReason, int | None, float | None]:
        block = num_hits // self._block_size
        if num_tokens < self._block_size:
            return "below one block", None, None
        if num_hits >= num_tokens - 1 or block >= num_tokens // self._block_size:
            return "whole prompt", None, None
        evicted = self._evicted.get(keys.keys[block])
        if evicted is not None:
            return "evicted", None, now - evicted
        end = (block + 1) * self._block_size * _TOKEN_BYTES  # a prompt not remembered so far is equal to none
        nearest, reason = 0, "prompt is new"
        for earlier in self._prompts.get(tenant, ()):
            if end <= len(prompt.tokens) and earlier.tokens[:end] == prompt.tokens[:end]:
                if earlier.salt == prompt.salt:
                    return "not kept", None, None
                reason = "other salt"
            elif earlier.salt == prompt.salt:
                nearest = max(nearest, _num_equal(earlier.tokens, prompt.tokens))
        if reason == "other salt":
            return "other salt", None, None
        is_near = max(num_hits, 1) <= nearest < MAX_PROMPT_TOKENS  # else it came from an answer, or is forgotten
        return ("prompts differ", nearest, None) if is_near else ("prompt is new", None, None)

    def _remember(self, tenant: bytes, prompt: _Prompt) -> None:
        prompts = self._prompts.get(tenant)
        if prompts is None:
            prompts = self._prompts[tenant] = deque(maxlen=MAX_PROMPTS)
            if len(self._prompts) > MAX_TENANTS:
                self._prompts.popitem(last=False)
        self._prompts.move_to_end(tenant)
        if prompt not in prompts:
            prompts.append(prompt)


def _num_equal(one: bytes, other: bytes) -> int:
    """Leading tokens that are equal."""
    low, high = 0, min(len(one), len(other)) // _TOKEN_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if one[: middle * _TOKEN_BYTES] == other[: middle * _TOKEN_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low
