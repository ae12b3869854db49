"""The official openai client against a real `octavo serve`: once with the fake model, once with the default one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from support.server_process import ServerProcess, serving, until

MESSAGES: Any = [{"role": "user", "content": "Name three colours. 한글도 괜찮아요 🙂"}]


@pytest.fixture(scope="module", params=["fake", pytest.param("smollm2", marks=pytest.mark.model)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = request.param if request.param == "fake" else str(request.getfixturevalue("smollm2_path"))
    log = tmp_path_factory.mktemp("server") / "log"
    options = ("--served-model-name", "m", "--max-num-seqs", "8", "--max-model-len", "1024", "--api-key", "sesame")
    with serving(model, log, options) as started:
        yield started
        assert "Traceback" not in started.output
        assert "sesame" not in started.output
        assert "colours" not in started.output


@pytest.fixture
def client(server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="sesame", max_retries=0, timeout=120) as made:
        yield made


def test_models_are_listed_and_retrieved(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["m"]
    assert client.models.retrieve("m").id == "m"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_chat_answers(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=12, temperature=0)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_joins_to_the_whole_answer_with_usage_last(client: OpenAI) -> None:
    asked: Any = {"model": "m", "messages": MESSAGES, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert "\ufffd" not in text[:-1]
    reasons = [chunk.choices[0].finish_reason for chunk in chunks[:-1] if chunk.choices[0].finish_reason]
    assert reasons == [whole.choices[0].finish_reason]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_the_clients_own_stream_helper_accumulates_the_same(client: OpenAI) -> None:
    asked: Any = {"model": "m", "messages": MESSAGES, "temperature": 0}
    text = client.chat.completions.create(**asked, max_tokens=16).choices[0].message.content
    assert text
    asked |= {"stop": text[4:7], "max_tokens": 64}  # the helper raises when an answer ends by its length
    whole = client.chat.completions.create(**asked)
    with client.chat.completions.stream(**asked) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].finish_reason == "stop"
    assert final.choices[0].message.content == whole.choices[0].message.content


def test_receipts_and_progress_of_the_prompt_reach_the_client_and_harm_no_helper(client: OpenAI) -> None:
    asked: Any = {"model": "m", "messages": MESSAGES, "temperature": 0}
    body = {"timings": True, "return_progress": True}
    whole = client.chat.completions.create(**asked, max_tokens=12, extra_body={"timings": True})
    assert whole.usage is not None
    assert (whole.model_extra or {})["timings"]["predicted_n"] == whole.usage.completion_tokens
    chunks = list(client.chat.completions.create(**asked, max_tokens=12, stream=True, extra_body=body))
    progress = (chunks[0].model_extra or {})["prompt_progress"]
    assert progress["total"] == progress["processed"] == whole.usage.prompt_tokens
    assert (chunks[-1].model_extra or {})["timings"]["predicted_n"] == whole.usage.completion_tokens
    text = whole.choices[0].message.content
    assert text
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    asked |= {"stop": text[4:7], "max_tokens": 64}
    with client.chat.completions.stream(**asked, extra_body=body) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.role == "assistant"
    assert final.choices[0].message.content == client.chat.completions.create(**asked).choices[0].message.content


def test_n_samples_differ_and_a_seed_repeats_them(client: OpenAI) -> None:
    asked: Any = {"model": "m", "messages": MESSAGES, "max_tokens": 16, "temperature": 1.0, "n": 3, "seed": 11}
    first = [choice.message.content for choice in client.chat.completions.create(**asked).choices]
    again = [choice.message.content for choice in client.chat.completions.create(**asked).choices]
    other = [choice.message.content for choice in client.chat.completions.create(**asked | {"seed": 12}).choices]
    assert len(set(first)) > 1
    assert first == again
    assert first != other
    texts = dict.fromkeys(range(3), "")
    for chunk in client.chat.completions.create(**asked, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert list(texts.values()) == first


def test_logprobs_name_the_tokens_of_the_answer(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="m", messages=MESSAGES, max_tokens=8, temperature=0, logprobs=True, top_logprobs=4
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content
    for entry in logprobs.content:
        assert len(entry.top_logprobs) == 4
        assert entry.logprob == max(each.logprob for each in entry.top_logprobs)
        assert entry.logprob <= 0


def test_completions_echo_and_score(client: OpenAI) -> None:
    answer = client.completions.create(
        model="m", prompt="The quick brown fox", max_tokens=1, echo=True, logprobs=1, temperature=0
    )
    choice = answer.choices[0]
    assert choice.text.startswith("The quick brown fox")
    assert choice.logprobs is not None
    scores: Any = choice.logprobs
    assert scores.token_logprobs[0] is None
    assert "".join(scores.tokens).startswith("The quick brown fox")
    for token, logprob, top in list(zip(scores.tokens, scores.token_logprobs, scores.top_logprobs, strict=True))[1:]:
        assert top[token] == logprob


def test_vllms_fields_work_as_extra_body(client: OpenAI) -> None:
    asked: Any = {"model": "m", "prompt": "Once upon a time", "max_tokens": 30, "temperature": 0}
    rule = {"max_pattern_size": 2, "min_count": 4}
    circling = client.completions.create(
        **asked, logit_bias={"101": 100}, extra_body={"repetition_detection": rule, "ignore_eos": True}
    )
    assert circling.choices[0].finish_reason == "stop"
    assert circling.choices[0].model_extra is not None
    assert circling.choices[0].model_extra["stop_reason"] == "repetition_detected"
    assert circling.usage is not None
    assert circling.usage.completion_tokens < 30
    ids = list(range(60, 128))
    scored = client.completions.create(
        **asked | {"max_tokens": 4},
        logprobs=0,
        extra_body={"logprob_token_ids": ids, "return_tokens_as_token_ids": True, "ignore_eos": True},
    )
    logprobs: Any = scored.choices[0].logprobs
    for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert {f"token_id:{token_id}" for token_id in ids} <= set(top)
        assert top[token] == logprob
    short = client.completions.create(**asked | {"max_tokens": 1}, extra_body={"truncate_prompt_tokens": 3})
    assert short.usage is not None
    assert short.usage.prompt_tokens == 3


def test_an_answer_goes_on_with_what_the_client_began(client: OpenAI) -> None:
    begun: Any = [*MESSAGES, {"role": "assistant", "content": "Three colours are red,"}]
    extra = {"continue_final_message": True, "echo": True, "return_prompt_text": True}
    asked: Any = {"model": "m", "messages": begun, "max_tokens": 8, "temperature": 0, "extra_body": extra}
    answer = client.chat.completions.create(**asked)
    text = answer.choices[0].message.content
    assert text is not None
    assert text.startswith("Three colours are red,")
    assert answer.model_extra is not None
    assert answer.model_extra["prompt_text"].endswith("Three colours are red,")
    chunks = client.chat.completions.create(**asked, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text


def test_many_prompts_come_back_in_order(client: OpenAI) -> None:
    prompts = [f"{number} bottles" for number in range(12)]
    answer = client.completions.create(model="m", prompt=prompts, max_tokens=4, temperature=0)
    assert [choice.index for choice in answer.choices] == list(range(12))
    alone = client.completions.create(model="m", prompt=prompts[7], max_tokens=4, temperature=0)
    assert alone.choices[0].text == answer.choices[7].text


def test_a_stop_string_is_not_in_the_text(client: OpenAI) -> None:
    asked: Any = {"model": "m", "prompt": "Once upon a time", "max_tokens": 40, "temperature": 0}
    text = client.completions.create(**asked).choices[0].text
    stop = text[8:11]
    cut = client.completions.create(**asked, stop=[stop]).choices[0]
    assert cut.text == text[: text.index(stop)]
    assert cut.finish_reason == "stop"
    streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(**asked, stop=stop, stream=True))
    assert streamed == cut.text


def test_a_crowd_gets_what_each_would_get_alone(server: ServerProcess) -> None:
    async def go() -> None:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="sesame", max_retries=0, timeout=120) as client:

            async def ask(number: int) -> str:
                answer = await client.completions.create(
                    model="m", prompt=f"Number {number}:", max_tokens=12, temperature=0.8, seed=number
                )
                return answer.choices[0].text

            together = await asyncio.gather(*(ask(number) for number in range(24)))
            alone = [await ask(number) for number in range(24)]
            assert together == alone

    asyncio.run(go())


def test_each_fault_raises_its_class(client: OpenAI, server: ServerProcess) -> None:
    create: Any = client.chat.completions.create
    with pytest.raises(openai.NotFoundError) as missing:
        create(model="other", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    for bad in (
        {"temperature": 9},
        {"n": 0},
        {"max_tokens": -1},
        {"messages": []},
        {"top_logprobs": 21, "logprobs": True},
        {"logit_bias": {"999999999": 1}},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}] * 2},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "none", "schema": {"not": {}}}}},
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            create(**({"model": "m", "messages": MESSAGES} | bad))
        assert refused.value.param == next(iter(bad))
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="m", prompt=[5] * 1024)
    assert long.value.code == "context_length_exceeded"
    with OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError):
            stranger.models.list()
        with pytest.raises(openai.AuthenticationError):
            stranger.chat.completions.create(model="m", messages=MESSAGES)


def test_leaving_a_stream_frees_its_blocks(client: OpenAI, server: ServerProcess) -> None:
    def idle() -> bool:
        found = metrics(client)
        return not found["octavo:num_used_blocks"] and not found["vllm:num_requests_running"]

    until("an idle server", idle)
    before = metrics(client)
    for _ in range(5):
        stream = client.chat.completions.create(
            model="m", messages=MESSAGES, stream=True, n=2, max_tokens=900, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        stream.close()
    until("the blocks of the clients that left", idle, 10)
    after = metrics(client)
    total = after["octavo:num_total_blocks"]
    assert after["octavo:num_free_blocks"] + after["octavo:num_cached_blocks"] == total
    assert after["octavo:kv_block_leak_total"] == 0
    assert after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"] < 5 * 2 * 900


def metrics(client: OpenAI) -> dict[str, float]:
    """/metrics asks for the key like every other route, so it goes through the client."""
    from prometheus_client.parser import text_string_to_metric_families

    text = client.with_options().get("../metrics", cast_to=str)
    return {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}


def test_embeddings_come_for_texts_and_ids_in_both_encodings(client: OpenAI) -> None:
    texts = ["Name three colours.", "한글도 괜찮아요 🙂", "x"]
    packed = client.embeddings.create(model="m", input=texts)  # the client asks for base64 where nothing is said
    plain = client.embeddings.create(model="m", input=texts, encoding_format="float", user="somebody")
    assert [each.index for each in packed.data] == [0, 1, 2]
    for a, b in zip(packed.data, plain.data, strict=True):
        assert a.embedding == b.embedding
        assert math.hypot(*a.embedding) == pytest.approx(1.0, abs=1e-6)
    assert packed.usage.prompt_tokens == packed.usage.total_tokens > 0
    assert client.embeddings.create(model="m", input=texts[1]).data[0].embedding == packed.data[1].embedding
    ids = [[7, 8, 9, 10], [11]]
    by_ids = client.embeddings.create(model="m", input=ids)
    assert by_ids.usage.prompt_tokens == 5
    assert client.embeddings.create(model="m", input=ids[0]).data[0].embedding == by_ids.data[0].embedding
    short = client.embeddings.create(model="m", input=texts[0], dimensions=8).data[0].embedding
    length = math.hypot(*plain.data[0].embedding[:8])
    assert short == pytest.approx([value / length for value in plain.data[0].embedding[:8]], abs=1e-6)


def test_embeddings_that_cannot_be_are_refused(client: OpenAI) -> None:
    wrong: list[dict[str, Any]] = [
        {"input": ""},
        {"input": []},
        {"input": [[]]},
        {"input": [10**9]},
        {"input": "x", "dimensions": 10**6},
        {"input": [1] * 1025},
    ]
    for fields in wrong:
        with pytest.raises(openai.BadRequestError) as caught:
            client.embeddings.create(model="m", **fields)
        assert caught.value.param in ("input", "dimensions")
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="other", input="x")


def test_embeddings_in_a_crowd_are_those_of_each_alone(server: ServerProcess, client: OpenAI) -> None:
    texts = [f"{number} leaves " * (1 + number % 7) for number in range(24)]

    async def go() -> list[list[float]]:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="sesame", max_retries=0, timeout=120) as many:
            talk = many.chat.completions.create(model="m", messages=MESSAGES, max_tokens=40)
            found = await asyncio.gather(talk, *(many.embeddings.create(model="m", input=text) for text in texts))
            return [each.data[0].embedding for each in found[1:]]

    together = asyncio.run(go())
    assert len({tuple(each) for each in together}) == len(texts)
    for number in (0, 5, 23):
        assert client.embeddings.create(model="m", input=texts[number]).data[0].embedding == together[number]
