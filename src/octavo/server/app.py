"""The HTTP application: every route, behind the one door. Knows no process, port or signal (`octavo.server.run` does).

Refuses to route around the door: it wraps the application, so a route added here is guarded without doing anything.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Path, Query, Request, Response
from fastapi.responses import HTMLResponse
from starlette.middleware.cors import CORSMiddleware

from octavo import __version__
from octavo.engine.control import MAX_LISTED
from octavo.server import debug, errors, live_requests, tokens
from octavo.server.anthropic import messages
from octavo.server.config import ServerConfig
from octavo.server.direct import DirectApp
from octavo.server.docs_page import PAGE, PAGE_POLICY, install_openapi
from octavo.server.door import Door
from octavo.server.errors import json_response
from octavo.server.limits import MAX_LISTED_ITEMS, MAX_REQUEST_ID_CHARS
from octavo.server.metrics import CONTENT_TYPE, ServerMetrics
from octavo.server.ollama import generate
from octavo.server.ollama import models as ollama_models
from octavo.server.openai import chat, completions, embeddings, forks, models, schema_check
from octavo.server.openai.call import Routes
from octavo.server.openai.parse import UnknownNames
from octavo.server.protocol import EngineLike, GrammarChecker, TemplateLike, TokenizerLike
from octavo.server.responses_api import create, retrieve
from octavo.server.responses_api.schemas import MAX_ID_CHARS
from octavo.server.state import Loaded, Phase, ServerState
from octavo.server.visit import Witness

DEFAULT_MAX_QUEUE = 512
CallId = Annotated[str, Path(max_length=MAX_REQUEST_ID_CHARS)]


def create_app(
    engine: EngineLike,
    tokenizer: TokenizerLike,
    template: TemplateLike | None,
    config: ServerConfig,
    *,
    max_queue: int = DEFAULT_MAX_QUEUE,
    grammars: GrammarChecker | None = None,
) -> DirectApp:
    """The application of an engine that is ready."""
    state = ServerState(config, ServerMetrics())
    state.set_ready(Loaded(engine, tokenizer, template, config, max_queue, grammars))
    return build_app(state)


def build_app(state: ServerState) -> DirectApp:
    """The application of a server in any phase; it answers 503 until `state.set_ready`."""
    app = DirectApp(
        title="octavo",
        version=__version__,
        description="OpenAI-compatible inference over a paged KV cache",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.octavo = state
    routes = Routes(state, UnknownNames())
    _add_openai(app, routes)
    _add_responses(app, routes)
    _add_anthropic(app, routes)
    _add_ollama(app, routes)
    _add_tokens(app, routes)
    _add_status(app, state)
    _add_debug(app, state)
    _add_requests(app, routes)
    errors.install(app)
    install_openapi(app)
    app.wrap(Door, state=state)
    _allow_origins(app, state.config)
    if state.tell:
        app.wrap(Witness, tell=state.tell)
    return app


def _allow_origins(app: DirectApp, config: ServerConfig) -> None:
    """CORS, only where asked for. Outside the door: a browser asks whether it may before it sends a key."""
    if config.allowed_origins:
        app.wrap(
            CORSMiddleware,
            allow_origins=config.allowed_origins,
            allow_methods=config.allowed_methods,
            allow_headers=config.allowed_headers,
            allow_credentials=config.allow_credentials,
            expose_headers=("X-Request-Id", "Retry-After"),
        )


def _add_openai(app: DirectApp, routes: Routes) -> None:
    state = routes.state

    @app.direct("/v1/chat/completions")
    async def create_chat_completion(request: Request) -> Response:
        """The next message of a conversation, whole or as server-sent events."""
        return await chat.create_chat_completion(routes, request)

    @app.direct("/v1/completions")
    async def create_completion(request: Request) -> Response:
        """The continuation of one or many prompts, whole or as server-sent events."""
        return await completions.create_completion(routes, request)

    @app.direct("/v1/embeddings")
    async def create_embeddings(request: Request) -> Response:
        """A vector for each of one or many texts, of the model's hidden states."""
        return await embeddings.create_embeddings(routes, request)

    @app.direct("/v1/fork")
    async def create_fork(request: Request) -> Response:
        """Other continuations of an earlier answer, live or ended lately, from any of its tokens on."""
        return await forks.create_fork(routes, request)

    @app.direct("/v1/schema/check")
    async def check_schema(request: Request) -> Response:
        """Whether a JSON schema, regex, choice or grammar can be enforced, and if not why."""
        return await schema_check.check_schema(routes, request)

    @app.get("/v1/models", response_class=Response)
    async def list_models() -> Response:
        """The names this server answers to."""
        return json_response(models.list_models(state))

    @app.get("/v1/models/{model:path}", response_class=Response)
    async def retrieve_model(model: str) -> Response:
        """One of them."""
        return json_response(models.retrieve_model(state, model))


def _add_responses(app: DirectApp, routes: Routes) -> None:
    state = routes.state

    @app.direct("/v1/responses")
    async def create_response(request: Request) -> Response:
        """The next items of a conversation, whole, as server-sent events, or made in the background."""
        return await create.create_response(routes, request)

    @app.direct("/v1/responses/input_tokens")
    async def count_input_tokens(request: Request) -> Response:
        """How many tokens the same conversation has as a prompt."""
        return await create.count_input_tokens(routes, request)

    @app.get("/v1/responses/{response_id}", response_class=Response)
    async def retrieve_response(request: Request, response_id: str) -> Response:
        """One that is kept, or is being made; for the key that asked for it."""
        return await retrieve.retrieve_response(state, request, response_id)

    @app.delete("/v1/responses/{response_id}", response_class=Response)
    async def delete_response(request: Request, response_id: str) -> Response:
        """It is kept no longer, nor can anybody go on from it."""
        return await retrieve.delete_response(state, request, response_id)

    @app.get("/v1/responses/{response_id}/input_items", response_class=Response)
    async def list_input_items(
        request: Request,
        response_id: str,
        limit: Annotated[int, Query(ge=1, le=MAX_LISTED_ITEMS)] = 20,
        order: Literal["asc", "desc"] = "desc",
        after: Annotated[str | None, Query(max_length=MAX_ID_CHARS)] = None,
    ) -> Response:
        """What it was asked with: the newest first, a page at a time."""
        return await retrieve.list_input_items(state, request, response_id, limit=limit, order=order, after=after)

    @app.post("/v1/responses/{response_id}/cancel", response_class=Response)
    async def cancel_response(request: Request, response_id: str) -> Response:
        """Ends one that is made in the background, and keeps it as far as it came."""
        return await retrieve.cancel_response(state, request, response_id)


def _add_anthropic(app: DirectApp, routes: Routes) -> None:
    @app.direct("/v1/messages")
    async def create_message(request: Request) -> Response:
        """The next message of a conversation, as clients of Anthropic ask for it and read it."""
        return await messages.create_message(routes, request)

    @app.direct("/v1/messages/count_tokens")
    async def count_tokens(request: Request) -> Response:
        """How many tokens the same conversation has as a prompt."""
        return await messages.count_tokens(routes, request)


def _add_ollama(app: DirectApp, routes: Routes) -> None:
    @app.direct("/api/chat")
    async def ollama_chat(request: Request) -> Response:
        """The next message of a conversation, as clients of Ollama ask for it and read it."""
        return await generate.chat_answer(routes, request)

    @app.direct("/api/generate")
    async def ollama_generate(request: Request) -> Response:
        """The answer to one prompt, through the chat template or raw."""
        return await generate.generate_answer(routes, request)

    @app.get("/api/tags", response_class=Response)
    async def ollama_tags() -> Response:
        """The names this server answers to, with what they are."""
        return json_response(ollama_models.list_tags(routes.state))

    @app.post("/api/show", response_class=Response)
    async def ollama_show(request: Request) -> Response:
        """What one of them is."""
        return await ollama_models.show(routes, request)

    @app.get("/api/version", response_class=Response)
    async def ollama_version() -> Response:
        """Octavo's."""
        return json_response({"version": __version__})


def _add_tokens(app: DirectApp, routes: Routes) -> None:
    @app.direct("/tokenize")
    async def tokenize(request: Request) -> Response:
        """The token ids of a prompt, or of messages as the chat route would see them."""
        return await tokens.tokenize(routes, request)

    @app.direct("/detokenize")
    async def detokenize(request: Request) -> Response:
        """The text of token ids."""
        return await tokens.detokenize(routes, request)

    @app.get("/tokenizer_info", response_class=Response)
    async def tokenizer_info() -> Response:
        """The tokenizer's marks and the chat template."""
        return json_response(tokens.tokenizer_info(routes.state))


def _add_debug(app: DirectApp, state: ServerState) -> None:
    @app.get("/debug/requests/{call_id}", response_class=Response)
    async def show_request(
        request: Request, call_id: str, index: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0
    ) -> Response:
        """What the engine knows of a call's requests, 128 at most, from the one that gives choice `index` on; for the
        call's own key and the administrator."""
        return await debug.show_request(state, request, call_id, index)

    @app.post("/reset_prefix_cache", response_class=Response)
    async def reset_prefix_cache(request: Request) -> Response:
        """Nothing computed so far is found again. For the administrator."""
        return await debug.reset_prefix_cache(state, request)


def _add_requests(app: DirectApp, routes: Routes) -> None:
    @app.get("/v1/requests", response_class=Response)
    async def list_requests(
        request: Request, limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = live_requests.DEFAULT_LIMIT
    ) -> Response:
        """What runs, waits, or gave way and waits again: whose, how old, and what it holds. For the administrator."""
        return await live_requests.list_requests(routes.state, request, limit)

    @app.post("/v1/requests/{call_id}/cancel", response_class=Response)
    async def cancel_request(request: Request, call_id: CallId) -> Response:
        """Ends a call; its client is told who did. For the administrator."""
        return await live_requests.cancel(routes.state, request, call_id)

    @app.post("/v1/requests/{call_id}/priority", response_class=Response)
    async def set_priority(request: Request, call_id: CallId) -> Response:
        """Puts a call before or behind others, from the next step on. For the administrator."""
        return await live_requests.set_priority(routes, request, call_id)


def _add_status(app: DirectApp, state: ServerState) -> None:
    @app.get("/health", response_class=Response)
    async def health() -> Response:
        """200 while the engine's step loop is heard; 503 while loading or draining, or when it is dead or hangs."""
        if state.is_healthy():
            return json_response({"status": "ok"})
        if state.phase is Phase.READY:
            return errors.error_response(errors.ServiceUnavailable("the engine does not answer", code="engine_hung"))
        return errors.error_response(state.unavailable())

    @app.get("/ping", response_class=Response)
    async def ping() -> Response:
        """The same as /health."""
        return await health()

    @app.get("/version", response_class=Response)
    async def version() -> Response:
        """What runs here."""
        info = state.loaded.info if state.is_loaded else None
        return json_response(
            {
                "version": __version__,
                "model": state.loaded.model_names[0] if info else None,
                "executor": info.executor if info else None,
                "isa": info.isa if info else None,
                "batch_invariant": True if info else None,
            }
        )

    @app.get("/load", response_class=Response)
    async def load() -> Response:
        """How many requests run or wait."""
        return json_response({"server_load": state.loaded.admission.num_taken})

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Prometheus text."""
        if state.is_loaded:
            await state.loaded.engine.settle_stats()
        return Response(state.metrics.render(), media_type=CONTENT_TYPE)

    @app.get("/docs", include_in_schema=False, response_class=HTMLResponse)
    async def docs() -> HTMLResponse:
        return HTMLResponse(PAGE, headers={"Content-Security-Policy": PAGE_POLICY})
