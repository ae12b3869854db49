"""S12: token ids outside the vocabulary, prompts of no token, and of one more than there is room for."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.loading.fake_tokenizer import FakeTokenizer
from support.attack import Attacker, check_answer, check_refusal, put, taking, unharmed
from support.server_process import ServerProcess

pytestmark = [pytest.mark.security("S12"), pytest.mark.long]

VOCAB = FakeTokenizer.vocab_size
CONTEXT = 256  # conftest.SMALL
OUTSIDE = [-1, -(2**31), VOCAB, VOCAB + 1, 2**31 - 1, 2**31, 2**63, 2**64, 10**30, 1.5, "1", True, None, [], {}]
LISTS = ("stop_token_ids", "allowed_token_ids", "tokens", "logprob_token_ids")


@pytest.mark.parametrize("wrong", OUTSIDE, ids=repr)
def test_an_id_outside_the_vocabulary_reaches_no_engine(server: ServerProcess, attacker: Attacker, wrong: Any) -> None:
    with unharmed(server):
        for target, place in taking(*LISTS):
            for value in ([wrong], [1, wrong], [wrong] * 1000):
                check_refusal(attacker.send(target, put(target.body(), place, value)), 400)
        for target, place in taking("prompt", "input"):
            for value in ([wrong], [5, wrong], [[5], [wrong]], [[5, wrong, 5]]):
                if value == [None] or not target.places("echo", "encoding_format"):
                    continue  # a prompt of text alone
                status = check_answer(attacker.send(target, put(target.body(), place, value)))
                assert status == 400 or isinstance(wrong, str), (str(target), value)
        for target, place in taking("logit_bias"):
            check_answer(attacker.send(target, put(target.body(), place, {str(wrong): 1.0})))


def test_ids_at_the_ends_of_the_vocabulary_are_taken(server: ServerProcess, attacker: Attacker) -> None:
    with unharmed(server):
        for target, place in taking(*LISTS):
            if not target.is_refused(place):
                assert check_answer(attacker.send(target, put(target.body(), place, [0, VOCAB - 1]))) in (200, 400, 404)


@pytest.mark.parametrize("empty", ["", [], [""], [[]], ["x", ""], [[5], []], [[], []]], ids=repr)
def test_a_prompt_of_no_token_is_refused(server: ServerProcess, attacker: Attacker, empty: Any) -> None:
    with unharmed(server):
        for target, place in taking("prompt", "input", "messages", "tokens"):
            if target.is_refused(place):
                continue
            status = check_answer(attacker.send(target, put(target.body(), place, empty)))
            asks_for_the_model = target.path.startswith("/api/")  # Ollama's way: an empty question loads the model
            counts = target.path in ("/tokenize", "/detokenize")
            is_said = empty == "" and target.path.startswith(
                "/v1/responses"
            )  # a message without words is one, as in chat
            assert status == 400 or asks_for_the_model or counts or is_said, (str(target), empty)


@pytest.mark.parametrize("stream", [False, True])
def test_the_longest_prompt_passes_and_one_token_more_does_not(
    server: ServerProcess, attacker: Attacker, stream: bool
) -> None:
    with unharmed(server):
        for target, place in taking("prompt"):
            if not target.places("stream") or target.path.startswith("/api/") or target.is_refused(place):
                continue  # a template adds to it
            for length, status in (
                (CONTEXT - 2, 200),
                (CONTEXT - 1, 200),
                (CONTEXT, 400),
                (CONTEXT + 1, 400),
                (10**5, 400),
            ):
                for prompt in ("x" * length, [7] * length, ["x" * length], [[7] * length]):
                    body = put(target.body(), place, prompt) | {"stream": stream}
                    response = attacker.send(target, body)
                    assert check_answer(response) == status, (length, response.text[:200])


def test_a_conversation_of_any_length_is_answered_or_refused(server: ServerProcess, attacker: Attacker) -> None:
    with unharmed(server):
        for target, place in taking("messages"):
            if target.is_refused(place):
                continue
            statuses = set()
            for length in range(CONTEXT - 60, CONTEXT + 3):
                body = put(target.body(), place, [{"role": "user", "content": "x" * length}])
                statuses.add(check_answer(attacker.send(target, body)))
            assert statuses <= {200, 400}
            if target.places("stream"):
                assert statuses == {200, 400}, "both sides of the limit were seen"
