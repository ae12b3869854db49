"""/api/tags, /api/show and /api/version say what is served."""

from __future__ import annotations

import pytest

from octavo import __version__
from octavo.server.config import ServerConfig
from octavo.server.ollama.models import parameter_size
from octavo.server.ollama.responses import OllamaShow, OllamaTags, OllamaVersion
from support.fake_engine import ScriptedEngine
from support.http_site import run, site


def test_tags_and_show_agree_on_every_name() -> None:
    async def go() -> None:
        facts = {
            "architecture": "llama",
            "path": "/models/a.gguf",
            "num_parameters": 134_515_008,
            "weight_bytes": 96_000_000,
            "weight_form": "int4+int8",
            "context_length": 8192,
            "chat_template": "{{ messages }}",
        }
        config = ServerConfig(served_model_names=("one", "two:8b"))
        async with site(config, engine=ScriptedEngine(lambda _: [], **facts)) as here:
            tags = OllamaTags.model_validate_json((await here.client.get("/api/tags")).content)
            assert [(tag.name, tag.model) for tag in tags.models] == [("one", "one"), ("two:8b", "two:8b")]
            details = tags.models[0].details
            assert (details.format, details.family, details.parameter_size) == ("gguf", "llama", "135M")
            assert details.quantization_level == "int4+int8"
            assert tags.models[0].size == 96_000_000
            assert tags.models[0].digest == tags.models[1].digest
            assert len(tags.models[0].digest) == 64
            for body in ({"model": "one"}, {"name": "one:latest"}, {"model": "two:8b", "verbose": True}):
                shown = OllamaShow.model_validate_json((await here.post("/api/show", body)).content)
                assert shown.details == details
                assert shown.template == "{{ messages }}"
                assert shown.model_info["llama.context_length"] == 8192
                assert shown.model_info["general.parameter_count"] == 134_515_008
            for body in ({"model": "other"}, {"model": "two"}, {"model": "two:8b:latest:latest"}):
                refused = await here.post("/api/show", body)
                assert refused.status_code == 404
                assert "is not served here" in refused.json()["error"]
            version = OllamaVersion.model_validate_json((await here.client.get("/api/version")).content)
            assert version.version == __version__
            assert "/models" not in (await here.client.get("/api/tags")).text

    run(go())


@pytest.mark.parametrize(
    ("number", "said"),
    [(0, "0"), (999, "999"), (134_515_008, "135M"), (1_711_376_384, "1.71B"), (8_030_261_312, "8.03B")],
)
def test_sizes_as_people_say_them(number: int, said: str) -> None:
    assert parameter_size(number) == said
