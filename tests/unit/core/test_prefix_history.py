"""Each reason why a prompt hit as far as it did, and that nobody learns of another tenant's prompts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from octavo.core import prefix_history
from octavo.core.prefix_history import MAX_EVICTED, MAX_PROMPT_TOKENS, MAX_PROMPTS, MAX_TENANTS, PrefixHistory
from octavo.core.prefix_key import KeyChain
from octavo.outputs import CacheReason, CacheReport

BLOCK_SIZE = 4


class Asker:
    """Asks as the scheduler does: one call a request, with the keys of its tokens."""

    def __init__(self, block_size: int = BLOCK_SIZE) -> None:
        self.block_size = block_size
        self.history = PrefixHistory(block_size)

    def keys(self, tokens: Sequence[int], salt: bytes = b"s") -> KeyChain:
        keys = KeyChain(salt, self.block_size)
        keys.extend(tokens)
        return keys

    def explain(
        self, tokens: Sequence[int], num_hits: int = 0, *, tenant: bytes = b"t", salt: bytes = b"s", now: float = 0.0
    ) -> tuple[CacheReason, int | None, float | None]:
        keys = self.keys(tokens, salt)
        return self.history.explain(tenant=tenant, salt=salt, token_ids=tokens, keys=keys, num_hits=num_hits, now=now)


def test_a_first_prompt_is_new() -> None:
    assert Asker().explain(range(10)) == ("prompt is new", None, None)


def test_a_prompt_below_one_block_cannot_be_cached() -> None:
    asker = Asker()
    asker.explain(range(3))
    assert asker.explain(range(3)) == ("below one block", None, None)
    assert asker.explain(range(4))[0] != "below one block"


@pytest.mark.parametrize(("num_tokens", "num_hits"), [(8, 8), (11, 8), (8, 7), (9, 8)])
def test_all_full_blocks_found_is_the_whole_prompt(num_tokens: int, num_hits: int) -> None:
    assert Asker().explain(range(num_tokens), num_hits) == ("whole prompt", None, None)


def test_the_first_token_that_differs_from_the_nearest_prompt_is_told() -> None:
    asker = Asker()
    asker.explain([1, 2, 9, 9, 9, 9, 9, 9])
    asker.explain([1, 2, 3, 4, 5, 6, 9, 9, 9, 9])
    asker.explain([7, 7, 7, 7])
    assert asker.explain([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 4) == ("prompts differ", 6, None)


def test_a_prompt_that_goes_on_where_another_ended_differs_from_there() -> None:
    asker = Asker()
    asker.explain(range(6))
    assert asker.explain(range(12), 4) == ("prompts differ", 6, None)


def test_a_hit_beyond_every_remembered_prompt_is_not_said_to_differ_before_its_end() -> None:
    """What was found came from an answer or from a prompt forgotten since: the nearest one explains nothing."""
    asker = Asker()
    asker.explain([1, 2, 3, 4, 5, 6, 7, 8])
    assert asker.explain([*range(1, 13), 20, 21, 22, 23], 12) == ("prompt is new", None, None)


def test_an_evicted_block_is_told_with_its_age() -> None:
    asker = Asker()
    asker.explain(range(12))
    asker.history.note_evicted([asker.keys(range(12)).keys[1]], now=5.0)
    assert asker.explain(range(12), 4, now=7.5) == ("evicted", None, 2.5)
    assert asker.explain(range(12), 8, now=7.5)[0] == "not kept", "block 2 was not evicted"


def test_another_salt_of_the_same_tenant_is_told() -> None:
    asker = Asker()
    asker.explain(range(12), salt=b"one")
    assert asker.explain(range(12), salt=b"two") == ("other salt", None, None)


def test_an_equal_prompt_that_was_not_kept_is_told() -> None:
    asker = Asker()
    asker.explain(range(12))
    assert asker.explain(range(12)) == ("not kept", None, None)
    asker.explain(range(12), salt=b"two")
    assert asker.explain(range(12))[0] == "not kept", "the same salt says more than another one"


def test_prompts_of_another_tenant_are_never_spoken_of() -> None:
    asker = Asker()
    for salt in (b"s", b"two"):
        asker.explain(range(12), tenant=b"other", salt=salt)
    assert asker.explain(range(12)) == ("prompt is new", None, None)
    assert asker.explain([0, 1, 2, 3, 9, 9, 9, 9], tenant=b"third") == ("prompt is new", None, None)


def test_a_prompt_longer_than_what_is_remembered_is_not_called_equal() -> None:
    asker = Asker()
    asker.explain([*range(MAX_PROMPT_TOKENS), 1, 1, 1, 1])
    longer = [*range(MAX_PROMPT_TOKENS), 2, 2, 2, 2, 3, 3, 3, 3]
    assert asker.explain(longer, MAX_PROMPT_TOKENS) == ("prompt is new", None, None)
    assert asker.explain(longer, MAX_PROMPT_TOKENS - BLOCK_SIZE)[0] == "not kept", "the next block was sent before"


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_history, "MAX_EVICTED", 100)
    asker = Asker()
    for number in range(3 * MAX_PROMPTS):
        asker.explain([number] * 8)
    for number in range(2 * MAX_TENANTS):
        asker.explain([1] * 8, tenant=str(number).encode())
    asker.explain([3] * 8, tenant=str(MAX_TENANTS).encode())
    asker.history.note_evicted((number.to_bytes(4, "little") for number in range(250)), now=1.0)
    assert len(asker.history._prompts) == MAX_TENANTS
    assert all(len(prompts) <= MAX_PROMPTS for prompts in asker.history._prompts.values())
    assert len(asker.history._evicted) == 100 < MAX_EVICTED
    assert (249).to_bytes(4, "little") in asker.history._evicted
    last, first = str(2 * MAX_TENANTS - 1).encode(), str(MAX_TENANTS - 1).encode()
    assert asker.explain([1] * 8, tenant=last)[0] == "not kept"
    assert asker.explain([1] * 8, tenant=first)[0] == "prompt is new", "silent for longest, so forgotten"


def test_the_same_prompt_again_takes_no_second_place() -> None:
    asker = Asker()
    asker.explain(range(8))
    for _ in range(2 * MAX_PROMPTS):
        asker.explain([9] * 8)
    assert asker.explain(range(8))[0] == "not kept"


def test_every_reason_has_a_sentence() -> None:
    for reason in CacheReason.__args__:  # type: ignore[attr-defined]
        report = CacheReport(reason, 12, 4, differs_at=5, evicted_seconds_ago=1.5)
        assert report.to_text().startswith("4 of 12 prompt tokens found; ")
    assert "1.5 s" in CacheReport("evicted", 12, 4, evicted_seconds_ago=1.5).to_text()
    assert "token 5" in CacheReport("prompts differ", 12, 4, differs_at=5).to_text()
