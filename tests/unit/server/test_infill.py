"""Fill in the middle: which tokenizers can be asked, and with which tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from octavo.loading.fake_tokenizer import FakeTokenizer
from octavo.sampling_params import SamplingParams
from octavo.server.infill import Infill
from support.fim_tokenizer import BEGIN, END, HOLE, FimTokenizer
from support.http_site import Site, check_error, events, run, site

FAMILIES = [
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
]


@pytest.mark.parametrize("spelled", FAMILIES)
def test_a_family_is_known_by_its_tokens(spelled: Sequence[str]) -> None:
    infill = Infill.of(FimTokenizer(spelled))
    assert infill is not None
    assert infill.prompt([9], [5, 6], [7]) == [9, BEGIN, 5, 6, HOLE, 7, END]
    assert set(infill.stop_token_ids) == {BEGIN, HOLE, END}


def test_all_three_tokens_are_needed() -> None:
    assert Infill.of(FakeTokenizer()) is None
    assert Infill.of(FimTokenizer(FAMILIES[0][:2])) is None
    assert Infill.of(FimTokenizer([FAMILIES[0][0], *FAMILIES[1][1:]])) is None


def test_tokens_that_are_not_called_special_and_what_ends_a_filled_hole() -> None:
    class Plain(FimTokenizer):
        @property
        def special_tokens(self) -> Mapping[int, str]:
            return {257: "<|eos|>"}

    tokenizer = Plain([*FAMILIES[0], "<|endoftext|>", "<|file_sep|>"])
    infill = Infill.of(tokenizer)
    assert infill is not None
    assert set(infill.stop_token_ids) == {4, 5, BEGIN, HOLE, END}
    ended = infill.ended(SamplingParams(stop_token_ids=(9, 4)))
    assert ended.stop_token_ids[0] == 9
    assert sorted(ended.stop_token_ids) == [1, 2, 3, 4, 5, 9]
    kept = SamplingParams(ignore_eos=True)
    assert infill.ended(kept) is kept


def test_a_suffix_begins_without_the_blank_that_a_tokenizer_puts_before_a_text() -> None:
    class Leading(FimTokenizer):
        def encode(self, text: str, **options: Any) -> list[int]:
            return super().encode(text if text in self._ids else " " + text, **options)

    for spelled, expected in ((FAMILIES[3], b"end"), (FAMILIES[0], b" end")):
        tokenizer = Leading(spelled)
        infill = Infill.of(tokenizer)
        assert infill is not None
        assert infill.suffix_ids(tokenizer, "end") == list(expected)


def test_a_completion_fills_the_hole_whole_and_streamed() -> None:
    async def go() -> None:
        async with site(tokenizer=FimTokenizer()) as here:
            whole = (await here.complete(prompt="def f(", suffix="    return x\n", return_token_ids=True)).json()
            [request] = here.engine.requests
            assert list(request.prompt_token_ids) == [BEGIN, *b"def f(", HOLE, *b"    return x\n", END]
            assert set(request.sampling.stop_token_ids) == {BEGIN, HOLE, END}
            choice = whole["choices"][0]
            assert choice["prompt_token_ids"] == list(request.prompt_token_ids)
            assert choice["text"]
            assert not choice["text"].startswith("def")
            chunks = events(await here.complete(prompt="def f(", suffix="    return x\n", stream=True))
            assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == choice["text"]
            many = (await here.complete(prompt=["a", "b"], suffix="c", n=2)).json()
            assert len(many["choices"]) == 4
            await here.complete(prompt=list(b"ids"), suffix="c")
            assert list(here.engine.requests[-1].prompt_token_ids) == [BEGIN, *b"ids", HOLE, *b"c", END]
            plain = await here.complete(prompt="def f(", suffix="")
            assert plain.status_code == 200
            assert list(here.engine.requests[-1].prompt_token_ids) == list(b"def f(")

    run(go())


def test_ollamas_clients_fill_it_too() -> None:
    async def go() -> None:
        async with site(tokenizer=FimTokenizer()) as here:
            body = {"prompt": "def f(", "suffix": "x", "stream": False, "options": {"num_predict": 4, "temperature": 0}}
            answer = await here.post("/api/generate", body)
            assert answer.status_code == 200, answer.text
            assert list(here.engine.requests[0].prompt_token_ids) == [BEGIN, *b"def f(", HOLE, *b"x", END]
            assert "insert" in (await here.post("/api/show", {"model": "fake"})).json()["capabilities"]
            refused = check_error(await here.post("/api/generate", body | {"system": "s"}), 400)
            assert "suffix" in refused["message"]

    run(go())


async def refused(here: Site, **fields: Any) -> str:
    param: str = check_error(await here.complete(**fields), 400)["param"]
    return param


def test_what_cannot_be_filled_is_refused_by_name() -> None:
    async def go() -> None:
        async with site() as here:
            for stream in (False, True):
                assert await refused(here, suffix="x", stream=stream) == "suffix"
                assert await refused(here, suffix=5, stream=stream) == "suffix"
            assert "no tokens to fill" in check_error(await here.complete(suffix="x"), 400)["message"]
            ollama = await here.post("/api/generate", {"prompt": "a", "suffix": "b"})
            assert "suffix" in check_error(ollama, 400)["message"]
            assert not here.engine.requests
        async with site(tokenizer=FimTokenizer()) as here:
            assert await refused(here, suffix="x", echo=True) == "echo"
            assert await refused(here, suffix="x", truncate_prompt_tokens=3) == "truncate_prompt_tokens"
            assert await refused(here, suffix="x" * 200) == "prompt"
            assert await refused(here, suffix="x" * (128 * 128 + 1)) == "suffix"

    run(go())
