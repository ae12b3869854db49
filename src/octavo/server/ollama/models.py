"""GET /api/tags and /api/version, POST /api/show: what is served, in the words of Ollama's clients.

Refuses (404) every name that is not served. A template is shown as the model brings it, which is Jinja.
"""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from pathlib import PurePath
from typing import Any

from fastapi import Request, Response

from octavo.engine.info import EngineInfo
from octavo.server.errors import json_response
from octavo.server.ollama.convert import served_name
from octavo.server.ollama.generate import timestamp
from octavo.server.ollama.schemas import OllamaShowRequest
from octavo.server.openai.call import Routes
from octavo.server.openai.parse import read
from octavo.server.state import Loaded, ServerState


def list_tags(state: ServerState) -> dict[str, Any]:
    info = state.loaded.info
    return {
        "models": [
            {
                "name": name,
                "model": name,
                "modified_at": _modified(state),
                "size": info.weight_bytes,
                "digest": _digest(info),
                "details": _details(info),
            }
            for name in state.loaded.model_names
        ]
    }


async def show(routes: Routes, http: Request) -> Response:
    body = await read(http, OllamaShowRequest, routes.state.config.limits, routes.unknown_names)
    state = routes.state
    info = state.loaded.info
    name = state.loaded.check_model(served_name(body.model or body.name, state.loaded))
    return json_response(
        {
            "modelfile": f"FROM {name}\n",
            "parameters": "",
            "template": info.chat_template or "",
            "details": _details(info),
            "model_info": {
                "general.architecture": info.architecture,
                "general.basename": info.model,
                "general.parameter_count": info.num_parameters,
                f"{info.architecture}.context_length": info.context_length,
                f"{info.architecture}.vocab_size": info.vocab_size,
                "octavo.max_model_len": info.max_model_len,
            },
            "capabilities": _capabilities(state.loaded),
            "modified_at": _modified(state),
        }
    )


def _capabilities(loaded: Loaded) -> list[str]:
    """Tools are known to every model with a template: where it has no place for them, they are described to it."""
    found = ["completion"]
    if loaded.template is not None:
        found.append("tools")
    if loaded.can_infill:
        found.append("insert")
    if loaded.speech.block is not None or loaded.speech.has_channels:
        found.append("thinking")
    return found


def _modified(state: ServerState) -> str:
    """Since when it is served: a server never changes its model."""
    return timestamp(datetime.fromtimestamp(state.created, UTC))


def _digest(info: EngineInfo) -> str:
    """Of what is served, not of the file: equal facts, equal digest."""
    facts = (info.model, info.architecture, info.weight_form, info.weight_bytes, info.num_parameters, info.vocab_size)
    return sha256(repr(facts).encode()).hexdigest()


def _details(info: EngineInfo) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "gguf" if PurePath(info.path).suffix == ".gguf" else "safetensors" if info.path else "",
        "family": info.architecture,
        "families": [info.architecture],
        "parameter_size": parameter_size(info.num_parameters),
        "quantization_level": info.weight_form,
    }


def parameter_size(num_parameters: int) -> str:
    """135M, 1.7B: as people say it."""
    for unit, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if num_parameters >= unit:
            return f"{num_parameters / unit:.3g}{suffix}"
    return str(num_parameters)
