"""/health, /version, /v1/models, /metrics, /docs, /openapi.json, /tokenize, /detokenize."""

from __future__ import annotations

import re

from prometheus_client.parser import text_string_to_metric_families

from octavo import __version__
from octavo.server.config import ServerConfig
from octavo.server.openai.responses import ModelCard, ModelList, Tokens, Version
from support.http_site import Site, check_error, run, site


async def metrics(here: Site) -> dict[str, float]:
    text = (await here.client.get("/metrics")).text
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "le" not in sample.labels and "finished_reason" not in sample.labels
    }


def test_health_follows_the_step_loop() -> None:
    async def go() -> None:
        async with site() as here:
            for path in ("/health", "/ping"):
                assert (await here.client.get(path)).status_code == 200
                here.engine.healthy = False
                assert check_error(await here.client.get(path), 503)["code"] == "engine_hung"
                here.engine.healthy = True

    run(go())


def test_version_says_what_runs() -> None:
    async def go() -> None:
        async with site() as here:
            version = Version.model_validate_json((await here.client.get("/version")).content)
            assert version == Version(
                version=__version__, model="fake", executor="fake", isa="python", batch_invariant=True
            )

    run(go())


def test_models_lists_every_served_name() -> None:
    async def go() -> None:
        async with site(ServerConfig(served_model_names=("one", "org/two"))) as here:
            listed = ModelList.model_validate_json((await here.client.get("/v1/models")).content)
            assert [card.id for card in listed.data] == ["one", "org/two"]
            assert listed.data[0].max_model_len == 128
            card = ModelCard.model_validate_json((await here.client.get("/v1/models/org/two")).content)
            assert card.id == "org/two"
            assert (await here.chat(model="org/two")).json()["model"] == "org/two"
            assert (await here.chat()).json()["model"] == "one"
            assert "one, org/two" in check_error(await here.chat(model="fake"), 404)["message"]
            assert check_error(await here.client.get("/v1/models/fake"), 404)

    run(go())


def test_metrics_have_vllms_names_and_the_blocks_add_up() -> None:
    async def go() -> None:
        async with site() as here:
            await here.chat(n=2)
            await here.complete(prompt=["a", "b"], stream=True)
            found = await metrics(here)
            blocks = [found[f"octavo:num_{kind}_blocks"] for kind in ("free", "cached", "used")]
            assert sum(blocks) == found["octavo:num_total_blocks"] > 0
            assert found["octavo:num_used_blocks"] == 0
            assert found["vllm:generation_tokens_total"] == 32
            assert found["vllm:e2e_request_latency_seconds_count"] == 3
            assert found["vllm:request_params_n_sum"] == 4
            for name in (
                "vllm:num_requests_running",
                "vllm:num_requests_waiting",
                "vllm:kv_cache_usage_perc",
                "vllm:cache_config_info",
                "vllm:prefix_cache_queries_total",
                "vllm:prefix_cache_hits_total",
                "vllm:num_preemptions_total",
                "vllm:prompt_tokens_total",
                "vllm:prompt_tokens_cached_total",
                "vllm:corrupted_requests_total",
                "vllm:time_to_first_token_seconds_count",
                "vllm:inter_token_latency_seconds_count",
                "vllm:request_time_per_output_token_seconds_count",
                "vllm:request_queue_time_seconds_count",
                "vllm:request_inference_time_seconds_count",
                "vllm:request_prefill_time_seconds_count",
                "vllm:request_decode_time_seconds_count",
                "vllm:request_prompt_tokens_count",
                "vllm:request_generation_tokens_count",
                "vllm:request_max_num_generation_tokens_count",
                "vllm:request_params_max_tokens_count",
                "vllm:iteration_tokens_total_count",
                "vllm:request_prefill_kv_computed_tokens_count",
            ):
                assert name in found
            text = (await here.client.get("/metrics")).text
            assert re.search(r'vllm:request_success_total\{.*finished_reason="length".*\} 3', text)

    run(go())


def test_labels_hold_nothing_a_client_sent() -> None:
    async def go() -> None:
        async with site() as here:
            for field in ("user", "cache_salt", "model"):
                await here.chat(**{field: "MADE-UP"})
            assert "MADE-UP" not in (await here.client.get("/metrics")).text

    run(go())


def test_the_docs_page_needs_no_other_host() -> None:
    async def go() -> None:
        async with site() as here:
            page = await here.client.get("/docs")
            assert page.status_code == 200
            assert page.headers["content-type"].startswith("text/html")
            assert "default-src 'none'" in page.headers["content-security-policy"]
            assert not re.search(r"(https?:)?//[a-z]", page.text)
            assert "openapi.json" in page.text

    run(go())


def test_the_openapi_document_names_every_route_body_and_bound() -> None:
    async def go() -> None:
        async with site() as here:
            document = (await here.client.get("/openapi.json")).json()
            schemas = document["components"]["schemas"]
            for path, name in (
                ("/v1/chat/completions", "ChatRequest"),
                ("/v1/completions", "CompletionRequest"),
                ("/tokenize", "TokenizeRequest"),
                ("/detokenize", "DetokenizeRequest"),
                ("/v1/responses", "ResponsesRequest"),
                ("/v1/responses/input_tokens", "InputTokensRequest"),
                ("/v1/messages", "MessagesRequest"),
                ("/v1/messages/count_tokens", "CountTokensRequest"),
                ("/api/chat", "OllamaChatRequest"),
                ("/api/generate", "OllamaGenerateRequest"),
                ("/api/show", "OllamaShowRequest"),
            ):
                body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
                assert body == {"$ref": f"#/components/schemas/{name}"}
                assert schemas[name]["properties"]
            assert '"maximum": 128' in str(schemas["ChatRequest"]["properties"]["n"]).replace("'", '"')
            assert schemas["ChatRequest"]["properties"]["function_call"]["enum"] == [None, "none"]
            assert schemas["ChatRequest"]["required"] == ["messages"]
            for path, name in (
                ("/v1/completions", "ErrorEnvelope"),
                ("/v1/messages", "AnthropicError"),
                ("/api/chat", "OllamaError"),
            ):
                refusal = document["paths"][path]["post"]["responses"]["4XX"]["content"]["application/json"]["schema"]
                assert refusal == {"$ref": f"#/components/schemas/{name}"}
            references = set(re.findall(r"#/components/schemas/(\w+)", str(document)))
            assert references <= set(schemas)
            assert {"/health", "/ping", "/version", "/metrics", "/v1/models"} <= set(document["paths"])

    run(go())


def test_tokenize_and_detokenize_have_vllms_shapes_and_invert_each_other() -> None:
    async def go() -> None:
        async with site() as here:
            for text in ("hello", "안녕 🙂", "<|im_end|>", "a\x00b", "x" * 16_384):
                got = Tokens.model_validate_json(
                    (await here.post("/tokenize", {"prompt": text, "return_token_strs": True})).content
                )
                assert got.count == len(got.tokens) == len(got.token_strs or [])
                assert got.max_model_len == 128
                back = (await here.post("/detokenize", {"tokens": got.tokens})).json()
                assert back == {"prompt": text}
            assert (await here.post("/tokenize", {"prompt": "hi"})).json()["token_strs"] is None
            assert (await here.post("/tokenize", {"prompt": ""})).json()["count"] == 0

    run(go())


def test_tokenize_of_messages_is_what_the_chat_route_runs() -> None:
    async def go() -> None:
        async with site() as here:
            messages = [{"role": "user", "content": "hi"}]
            for extra in ({}, {"add_generation_prompt": False}):
                tokens = (await here.post("/tokenize", {"messages": messages, **extra})).json()["tokens"]
                await here.chat(messages=messages, **extra)
                assert list(here.engine.requests[-1].prompt_token_ids) == tokens

    run(go())


def test_bad_input_of_both_is_refused() -> None:
    """B40: messages [] and tokens [-1] were a 500 elsewhere."""

    async def go() -> None:
        async with site() as here:
            for body in (
                {},
                {"prompt": None},
                {"prompt": 5},
                {"prompt": ["a"]},
                {"messages": []},
                {"prompt": "a", "messages": [{"role": "user", "content": "a"}]},
                {"prompt": "a", "chat_template_kwargs": {}},
                {"prompt": "a", "add_special_tokens": "yes"},
                {"prompt": "x" * (128 * 128 + 1)},
                {"messages": [{"role": "user", "content": "a"}], "chat_template": "x"},
                {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"tokenize": True}},
            ):
                check_error(await here.post("/tokenize", body), 400)
            vocab = here.engine.info.vocab_size
            for tokens in ([-1], [vocab], [2**31], [2**64], [10**400], ["1"], [1.5], [True], "1", 5, None, {}):
                assert check_error(await here.post("/detokenize", {"tokens": tokens}), 400)["param"] == "tokens"
            check_error(await here.post("/detokenize", {}), 400)
            assert (await here.post("/detokenize", {"tokens": []})).json() == {"prompt": ""}
            for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
                check_error(await here.post(path, body | {"model": "other"}), 404)

    run(go())
