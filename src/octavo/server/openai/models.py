"""GET /v1/models and /v1/models/{id}. Refuses (404) every name that is not served."""

from __future__ import annotations

from typing import Any

from octavo.errors import NotFound
from octavo.server.state import ServerState


def list_models(state: ServerState) -> dict[str, Any]:
    return {"object": "list", "data": [_card(state, name) for name in state.loaded.model_names]}


def retrieve_model(state: ServerState, name: str) -> dict[str, Any]:
    """Raises NotFound."""
    if not name:
        raise NotFound("a model's name is needed", param="model", code="model_not_found")
    return _card(state, state.loaded.check_model(name))


def _card(state: ServerState, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": state.created,
        "owned_by": "octavo",
        "root": state.loaded.info.model,
        "parent": None,
        "max_model_len": state.loaded.info.max_model_len,
        "permission": [],
    }
