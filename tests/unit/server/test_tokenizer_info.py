"""GET /tokenizer_info: what lets a client leave tokenising to the server."""

from __future__ import annotations

from octavo.loading.fake_tokenizer import BOS_TOKEN, EOS_TOKEN, FAKE_CHAT_TEMPLATE
from octavo.server.config import ServerConfig
from octavo.server.openai.responses import TokenizerInfo
from support.http_site import check_error, run, site


def test_it_names_the_marks_and_each_is_one_token() -> None:
    async def go() -> None:
        async with site() as here:
            info = TokenizerInfo.model_validate_json((await here.client.get("/tokenizer_info")).content)
            assert (info.bos_token, info.eos_token) == (BOS_TOKEN, EOS_TOKEN)
            assert info.chat_template == FAKE_CHAT_TEMPLATE
            assert info.model_max_length == 128
            for mark in (info.bos_token, info.eos_token):
                asked = await here.post("/tokenize", {"prompt": mark, "add_special_tokens": False})
                assert asked.json()["count"] == 1
                assert asked.json()["tokens"][0] < info.vocab_size

    run(go())


def test_a_model_without_a_template_says_so() -> None:
    async def go() -> None:
        async with site() as here:
            here.state.loaded.template = None
            assert (await here.client.get("/tokenizer_info")).json()["chat_template"] is None

    run(go())


def test_it_asks_for_the_key() -> None:
    async def go() -> None:
        async with site(ServerConfig(api_keys=("sesame",))) as here:
            check_error(await here.client.get("/tokenizer_info"), 401)

    run(go())
