"""/v1/embeddings: every shape of input, both encodings, every bound, and nobody else's stream moved."""

from __future__ import annotations

import asyncio
import base64
import math
import struct
from typing import Any

import pytest

from octavo.executors.fake import HIDDEN_SIZE
from octavo.outputs import SequenceDelta
from octavo.server.config import ServerConfig
from octavo.server.limits import Limits
from octavo.server.openai.responses import EmbeddingList
from support.fake_engine import ScriptedEngine
from support.http_site import Site, check_error, run, site

PATH = "/v1/embeddings"


async def embed(here: Site, given: Any, **fields: Any) -> EmbeddingList:
    response = await here.post(PATH, {"input": given} | fields)
    assert response.status_code == 200, response.text
    return EmbeddingList.model_validate_json(response.content)


def floats(encoded: list[float] | str) -> list[float]:
    if isinstance(encoded, list):
        return encoded
    data = base64.b64decode(encoded, validate=True)
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def test_inputs_come_as_text_ids_and_lists_of_both() -> None:
    async def go() -> None:
        async with site() as here:
            ids = list(b"hello")
            vectors = []
            for given, count in (("hello", 1), (["hello"], 1), (["hello"] * 3, 3), (ids, 1), ([ids, ids], 2)):
                answer = await embed(here, given)
                assert [each.index for each in answer.data] == list(range(count))
                assert answer.usage.prompt_tokens == answer.usage.total_tokens == 5 * count
                vectors += [tuple(floats(each.embedding)) for each in answer.data]
            assert len(set(vectors)) == 1
            assert math.hypot(*vectors[0]) == pytest.approx(1.0, abs=1e-6)
            assert answer.model == "fake"
            assert answer.id.startswith("embd-")

    run(go())


def test_vectors_stand_in_the_order_of_their_inputs_and_are_those_of_each_alone() -> None:
    async def go() -> None:
        async with site() as here:
            texts = [f"{n} " * (1 + n % 11) for n in range(100)]  # more than are in the engine at once
            together = [each.embedding for each in (await embed(here, texts)).data]
            assert len({tuple(floats(each)) for each in together}) == 100
            for number in (0, 37, 99):
                assert (await embed(here, texts[number])).data[0].embedding == together[number]

    run(go())


def test_base64_holds_the_same_numbers() -> None:
    async def go() -> None:
        async with site() as here:
            plain = await embed(here, ["a", "b"], encoding_format="float")
            packed = await embed(here, ["a", "b"], encoding_format="base64")
            for a, b in zip(plain.data, packed.data, strict=True):
                assert isinstance(b.embedding, str)
                assert a.embedding == floats(b.embedding)

    run(go())


def test_dimensions_are_a_prefix_of_length_one() -> None:
    async def go() -> None:
        async with site() as here:
            raw = floats((await embed(here, "x", normalize=False)).data[0].embedding)
            assert len(raw) == HIDDEN_SIZE
            for dimensions in (1, 5, HIDDEN_SIZE):
                short = floats((await embed(here, "x", dimensions=dimensions)).data[0].embedding)
                length = math.hypot(*raw[:dimensions])
                assert short == pytest.approx([value / length for value in raw[:dimensions]], abs=1e-6)

    run(go())


def test_long_inputs_may_be_cut_at_either_side() -> None:
    async def go() -> None:
        async with site() as here:
            text = "".join(chr(97 + n % 26) for n in range(300))
            for side, kept in (("left", text[-128:]), ("right", text[:128])):
                whole = (await embed(here, kept)).data[0].embedding
                for given in (text, list(text.encode())):
                    cut = await embed(here, [given], truncate_prompt_tokens=-1, truncation_side=side)
                    assert cut.data[0].embedding == whole
                    assert cut.usage.prompt_tokens == 128
            few = await embed(here, [text, "short"], truncate_prompt_tokens=5)
            assert few.data[0].embedding == (await embed(here, text[-5:])).data[0].embedding
            assert few.usage.prompt_tokens == 10

    run(go())


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_the_server_chooses_the_pooling(pooling: Any) -> None:
    async def go() -> None:
        async with site(ServerConfig(embedding_pooling=pooling)) as here:
            long = "the same beginning, and then more " * 3
            await embed(here, long)
            answer = await embed(here, long)
            assert here.engine.requests[0].sampling.pooling.pooling == pooling
            hits = answer.usage.prompt_tokens_details.cached_tokens
            assert (hits > 0) is (pooling == "last")  # the mean needs every token's state

    run(go())


def test_each_key_has_blocks_of_its_own_and_a_salt_parts_them_further() -> None:
    async def go() -> None:
        async with site(ServerConfig(embedding_pooling="last", api_keys=("k1", "k2"))) as here:

            async def hits(key: str, **fields: Any) -> int:
                headers = {"Authorization": f"Bearer {key}"}
                response = await here.client.post(PATH, json={"input": "0123456789"} | fields, headers=headers)
                return int(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

            assert [await hits("k1"), await hits("k1"), await hits("k2"), await hits("k1", cache_salt="s")] == [
                0,
                8,
                0,
                0,
            ]

    run(go())


@pytest.mark.parametrize("given", ["", [], [""], ["a", ""], [[]], [[1], []], "missing", None, 5, {}, [True], [1.5], [1, "a"], [[1, "a"]], [None], [-1], [[1], [260]], [2**31], [2**64], [10**40]])  # fmt: skip
def test_an_input_that_is_none_is_refused(given: object) -> None:
    async def go() -> None:
        async with site() as here:
            response = await here.post(PATH, {} if given == "missing" else {"input": given})
            assert check_error(response, 400)["param"] == "input"
            assert not here.engine.requests

    run(go())


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": HIDDEN_SIZE + 1}, "dimensions"),
        ({"dimensions": 2**31}, "dimensions"),
        ({"dimensions": 1.5}, "dimensions"),
        ({"dimensions": "5"}, "dimensions"),
        ({"dimensions": True}, "dimensions"),
        ({"encoding_format": "bytes"}, "encoding_format"),
        ({"encoding_format": 1}, "encoding_format"),
        ({"normalize": "no"}, "normalize"),
        ({"user": "u" * 513}, "user"),
        ({"cache_salt": "é" * 129}, "cache_salt"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"priority": 1}, "priority"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 129}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncation_side": "left"}, "truncation_side"),
        ({"request_id": "not printable\n"}, "request_id"),
        ({"messages": []}, "messages"),
        ({"embed_dtype": "float16"}, "embed_dtype"),
        ({"use_activation": False}, "use_activation"),
        ({"model": "m" * 513}, "model"),
    ],
)
def test_a_field_out_of_its_bounds_is_named(fields: dict[str, Any], named: str) -> None:
    async def go() -> None:
        async with site() as here:
            assert check_error(await here.post(PATH, {"input": "x"} | fields), 400)["param"] == named
            assert not here.engine.requests
            nulls = dict.fromkeys(fields)
            assert (await here.post(PATH, {"input": "x"} | nulls)).status_code == 200

    run(go())


def test_every_bound_holds_at_the_limit_and_not_above() -> None:
    async def go() -> None:
        limits = Limits(max_prompts=4, max_work_tokens=40, max_embedding_values=3 * HIDDEN_SIZE)
        async with site(ServerConfig(limits=limits)) as here:
            await embed(here, ["a"] * 3)
            assert "make 64 numbers" in check_error(await here.post(PATH, {"input": ["a"] * 4}), 400)["message"]
            await embed(here, ["a"] * 4, dimensions=4)
            answer = check_error(await here.post(PATH, {"input": ["a"] * 5, "dimensions": 1}), 400)
            assert "5 inputs, the limit of one call is 4" in answer["message"]
            await embed(here, [[1] * 20, [2] * 20])
            for given in ([[1] * 20, [2] * 21], ["a" * 20, "b" * 21]):
                assert "40" in check_error(await here.post(PATH, {"input": given}), 400)["message"]
        async with site() as here:
            await embed(here, [1] * 128)
            for given in ([1] * 129, "x" * 129, ["x" * 129, "y"], "x" * 128 * 128 + "x"):
                assert check_error(await here.post(PATH, {"input": given}), 400)["code"] == "context_length_exceeded"

    run(go())


def test_another_model_is_not_found() -> None:
    async def go() -> None:
        async with site() as here:
            assert check_error(await here.post(PATH, {"input": "x", "model": "other"}), 404)["param"] == "model"

    run(go())


def test_a_client_that_leaves_ends_its_inputs() -> None:
    async def go() -> None:
        async with site() as here:
            here.engine.hold()
            asking = asyncio.create_task(here.post(PATH, {"input": ["x", "y"]}))
            await here.engine.submitted.wait()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            here.engine.running.set()
            await embed(here, "z")
            assert here.state.loaded.admission.num_taken == 0
            assert len(here.engine.aborted) == len(here.engine.requests) - 1

    run(go())


def test_an_engine_that_gives_no_vector_is_a_500_and_never_half_an_answer() -> None:
    async def go() -> None:
        def script(request: Any) -> list[list[SequenceDelta] | Exception]:
            embedding = b"\0\0\x80?" * HIDDEN_SIZE if request.request_id.endswith(".0") else None
            return [[SequenceDelta("", 0, "", (), finish_reason="stop", embedding=embedding)]]

        async with site(engine=ScriptedEngine(script, embedding_size=HIDDEN_SIZE)) as here:
            assert check_error(await here.post(PATH, {"input": ["x", "y"]}), 500)["type"] == "internal_error"
            assert (await embed(here, "x")).data[0].embedding == [1.0] * HIDDEN_SIZE

    run(go())


def test_a_model_that_shows_no_hidden_state_is_named() -> None:
    async def go() -> None:
        async with site(engine=ScriptedEngine(lambda _: [])) as here:
            assert "no hidden state" in check_error(await here.post(PATH, {"input": "x"}), 400)["message"]

    run(go())


def test_texts_and_vectors_share_steps_and_neither_moves_the_other() -> None:
    async def go() -> None:
        async with site() as here:
            text = (await here.complete(max_tokens=40)).json()["choices"]
            vector = (await embed(here, "z" * 100)).data[0].embedding
            both = await asyncio.gather(
                here.complete(max_tokens=40), *(embed(here, "z" * 100) for _ in range(3)), here.complete(max_tokens=40)
            )
            for answer in both:
                if isinstance(answer, EmbeddingList):
                    assert answer.data[0].embedding == vector
                else:
                    assert answer.json()["choices"] == text

    run(go())
