"""The server's process from its first line to its exit code.

    bind the port -> start the engine process -> serve 503 while it loads -> ready -> (SIGTERM) drain -> stop

Refuses to start on a port that is taken or with a model that cannot run: an OctavoError before anything is served.
Invariants: the engine process starts before anything heavy is imported here, so that both load at once; it never
outlives this process; when it dies, requests in flight are answered with the error, /health says 503, and the process
exits with EXIT_ENGINE_DIED after `DEATH_LINGER_SECONDS`. One SIGTERM or SIGINT drains, for `shutdown_timeout_seconds`
at most; a second one stops at once. What is in flight at the end is answered with an error, never just cut. SIGHUP has
the key file read again; where there is none it is a SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from octavo.config import EngineConfig
from octavo.errors import ConfigError, OctavoError
from octavo.log_lines import configure, one_line
from octavo.server.config import ServerConfig
from octavo.server.json_body import bound_integers

if TYPE_CHECKING:
    import ssl

    import uvicorn

    from octavo.engine.async_engine import AsyncEngine
    from octavo.loading.front import Front
    from octavo.server.grammar_workers import GrammarWorkers
    from octavo.server.keys import Keys
    from octavo.server.protocol import TemplateLike, TokenizerLike
    from octavo.server.screen import JsonScreen, Screen
    from octavo.server.state import ServerState
    from octavo.server.template_workers import TemplateWorkers
    from octavo.server.tracing import Tracer
    from octavo.server.visit import Visit

logger = logging.getLogger("octavo.server")

EXIT_OK = 0  # it was told to stop, and did, whether or not all requests could finish
EXIT_FAILED = 1  # it could not start
EXIT_ENGINE_DIED = 3
EXIT_FORCED = 130  # a second signal
DEATH_LINGER_SECONDS = 2.0  # so that clients read their errors and probes see the 503
_BACKLOG = 2048
_OPEN_FILES = 65_536


def serve(engine_config: EngineConfig, server_config: ServerConfig) -> int:
    """Serves until told to stop. Returns the exit code; raises ConfigError, ModelFileError, EngineDead at the start."""
    gc.disable()  # what is made until the model is ready is there to stay: looking through it again and again is vain
    configure(server_config.log_format)
    bound_integers()
    _raise_file_limit()
    keys, tls = _secrets(server_config, has_weights=engine_config.scheduling_policy == "fair")
    with bind(server_config.host, server_config.port) as sock, asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_Serving(engine_config, server_config, sock, keys, tls).run())


def _secrets(config: ServerConfig, *, has_weights: bool) -> tuple[Keys | None, ssl.SSLContext | None]:
    """What its files hold, read before anything is started; nothing is imported for what nobody asked for."""
    keys: Keys | None = None
    tls: ssl.SSLContext | None = None
    if config.api_key_file is not None:
        from octavo.server.keys import Keys

        keys = Keys(config, has_weights=has_weights)
    if config.ssl_certfile is not None:
        from octavo.server.tls import tls_context

        tls = tls_context(config)
    return keys, tls


def bind(host: str, port: int) -> socket.socket:
    """The listening address, taken before the model is loaded. Raises ConfigError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):  # UnicodeError: a name that IDNA cannot encode
        raise ConfigError(
            f"host {ascii(host)[1:-1]} is no address of this machine; use 127.0.0.1 or 0.0.0.0", param="host"
        )
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and host == "::":
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(address)
        sock.listen(_BACKLOG)  # now, so that a second server is refused here and not after its model is loaded
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise ConfigError(
                f"host {host} is no address of this machine; use 127.0.0.1 or 0.0.0.0", param="host"
            ) from None
        raise ConfigError(
            f"cannot listen on port {port} of {host}: {(error.strerror or 'refused').lower()}; choose another --port",
            param="port",
        ) from None
    return sock


def _raise_file_limit() -> None:
    """Each client holds a file: the soft limit, often 1,024, is raised to what this process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, _OPEN_FILES) if hard != resource.RLIM_INFINITY else _OPEN_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # a platform without it
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class _Serving:
    """One run of the server: owns the engine process, the HTTP server, the render workers and the signals."""

    def __init__(
        self,
        engine_config: EngineConfig,
        server_config: ServerConfig,
        sock: socket.socket,
        keys: Keys | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._engine_config = engine_config
        self._config = server_config
        self._socket = sock
        self._keys = keys
        self._tls = tls
        self._began = time.monotonic()
        self._num_signals = 0
        self._drain = asyncio.Event()
        self._force = asyncio.Event()
        self._starting: asyncio.Task[AsyncEngine] | None = None
        self._engine: AsyncEngine | None = None
        self._workers: TemplateWorkers | None = None
        self._grammars: GrammarWorkers | None = None
        self._tracer: Tracer | None = None

    async def run(self) -> int:
        try:
            with self._signals():
                return await self._run()
        finally:
            if self._workers is not None:
                await self._workers.close()
            if self._grammars is not None:
                await self._grammars.close()
            if self._starting is not None and not self._starting.done():
                self._starting.cancel()
                await asyncio.wait((self._starting,))
            await self._stop_engine()
            if self._tracer is not None:
                await asyncio.to_thread(self._tracer.close)

    async def _run(self) -> int:
        from octavo.engine.async_engine import ENGINE_COMMAND, JSON_ENGINE_COMMAND, AsyncEngine

        stages: list[tuple[str, float]] = []
        report: Callable[[str, float], None] = lambda stage, fraction: stages.append((stage, fraction))  # noqa: E731

        def progress(stage: str, fraction: float) -> None:
            report(stage, fraction)

        command = JSON_ENGINE_COMMAND if self._config.log_format == "json" else ENGINE_COMMAND
        self._starting = asyncio.create_task(AsyncEngine.start(self._engine_config, progress=progress, command=command))
        await asyncio.sleep(0)  # the process is spawned before the imports below take the processor
        state, http, self._tracer = await asyncio.to_thread(_prepare_http, self._config, self._keys, self._tls)
        from octavo.server.screen import screen_for

        screen = screen_for(self._config)
        serving = asyncio.create_task(http.serve([self._socket]))
        stopping = asyncio.create_task(self._drain.wait())
        try:
            with screen.loading() as report:
                if not await self._load(state, self._starting, stopping, serving):
                    return EXIT_OK
            assert self._engine is not None
            port = self._socket.getsockname()[1]
            screen.ready(self._engine.info, self._config, port, time.monotonic() - self._began)
            code = await self._until_end(state, screen, serving, stopping)
        finally:
            stopping.cancel()
            await self._stop_engine()  # first, so that what is still in flight is answered with the error
            await _close_http(http, serving)
            await state.responses.close()
        return EXIT_FORCED if code == EXIT_OK and self._force.is_set() else code

    async def _stop_engine(self) -> None:
        """With time to give a tier what is cached, unless a second signal comes. Idempotent."""
        if self._engine is None:
            return
        stopping = asyncio.create_task(self._engine.stop())
        forced = asyncio.create_task(self._force.wait())
        await asyncio.wait((stopping, forced), return_when=asyncio.FIRST_COMPLETED)
        forced.cancel()
        if not stopping.done():
            await self._engine.stop(timeout_seconds=0.0)
        await stopping

    async def _load(
        self,
        state: ServerState,
        starting: asyncio.Task[AsyncEngine],
        stopping: asyncio.Task[Any],
        serving: asyncio.Task[None],
    ) -> bool:
        """Until the model is ready. False: told to stop, or the HTTP server ended, before that."""
        from octavo.server.grammar_workers import GrammarWorkers
        from octavo.server.state import Loaded

        loading = asyncio.create_task(self._load_parts(starting))
        await asyncio.wait((loading, stopping, serving), return_when=asyncio.FIRST_COMPLETED)
        if stopping.done() or not loading.done():
            loading.cancel()
            with contextlib.suppress(asyncio.CancelledError, OctavoError):  # the signal may have ended the engine too
                await loading
            return False
        tokenizer, template = loading.result()
        assert self._engine is not None
        self._grammars = GrammarWorkers(self._config.limits)
        max_queue = self._engine_config.max_queue
        state.set_ready(Loaded(self._engine, tokenizer, template, self._config, max_queue, self._grammars))
        gc.freeze()
        gc.enable()
        return True

    async def _load_parts(self, starting: asyncio.Task[AsyncEngine]) -> tuple[TokenizerLike, TemplateLike | None]:
        """Tokenizer and template while the engine loads; where the files are not here yet, the engine fetches them."""
        early = asyncio.create_task(self._load_text_parts(_load_front_early))
        try:
            self._engine = await starting
        except BaseException:
            early.cancel()
            await asyncio.gather(early, starting, return_exceptions=True)  # a fault of the files is told once
            raise
        parts = await early
        if parts is None:
            parts = await self._load_text_parts(_load_front)
        assert parts is not None, "files that are not here are an error by now"
        return parts

    async def _load_text_parts(
        self, load: Callable[[str], Front | None]
    ) -> tuple[TokenizerLike, TemplateLike | None] | None:
        front = await asyncio.to_thread(load, self._engine_config.model)
        if front is None:
            return None
        from octavo.server.text_parts import text_parts

        tokenizer, self._workers = await text_parts(front, self._config)
        return tokenizer, self._workers

    async def _until_end(
        self,
        state: ServerState,
        screen: Screen | JsonScreen,
        serving: asyncio.Task[None],
        stopping: asyncio.Task[Any],
    ) -> int:
        from octavo.server.state import Phase
        from octavo.server.vigil import keep_vigil

        assert self._engine is not None
        died = asyncio.create_task(self._engine.died.wait())
        vigil = asyncio.create_task(keep_vigil(self._engine))
        try:
            await asyncio.wait((died, stopping, serving), return_when=asyncio.FIRST_COMPLETED)
            if not died.done() and not serving.done():
                state.phase = Phase.DRAINING
                screen.stopping()
                await self._wait_idle(state, died)
            is_idle = state.phase is Phase.DRAINING and not state.loaded.admission.num_taken
            if died.done() and not is_idle:
                state.phase = Phase.DEAD
                screen.failed(self._engine.failure)
                await asyncio.wait((asyncio.create_task(self._force.wait()),), timeout=DEATH_LINGER_SECONDS)
                return EXIT_ENGINE_DIED
            return EXIT_OK
        finally:
            died.cancel()
            vigil.cancel()

    async def _wait_idle(self, state: ServerState, died: asyncio.Task[Any]) -> None:
        """Until no request is in flight, the timeout, a second signal or the engine's death."""
        idle = asyncio.create_task(state.loaded.admission.wait_idle())
        forced = asyncio.create_task(self._force.wait())
        await asyncio.wait(
            (idle, forced, died),
            timeout=self._config.shutdown_timeout_seconds,
            return_when=asyncio.FIRST_COMPLETED,
        )
        idle.cancel()
        forced.cancel()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        handlers: dict[int, Callable[[], None]] = dict.fromkeys((signal.SIGTERM, signal.SIGINT), self._on_signal)
        if self._keys is not None:
            handlers[signal.SIGHUP] = self._on_hangup
        elif signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # which nohup sets
            handlers[signal.SIGHUP] = self._on_signal
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    def _on_hangup(self) -> None:
        """The key file is read again; where it is wrong, the keys stay as they are."""
        assert self._keys is not None
        try:
            self._keys.reload()
        except ConfigError as error:
            logger.error("keys stay as they were: %s", one_line(error.message, 512))
        else:
            logger.info("keys read again: %d", len(self._keys))

    def _on_signal(self) -> None:
        self._num_signals += 1
        self._drain.set()
        if self._num_signals > 1:
            self._force.set()


def _prepare_http(
    config: ServerConfig, keys: Keys | None, tls: ssl.SSLContext | None
) -> tuple[ServerState, uvicorn.Server, Tracer | None]:
    """The heavy imports, while the engine loads. Raises ConfigError."""
    import uvicorn

    from octavo.server.app import build_app
    from octavo.server.http_protocol import bounded_protocol
    from octavo.server.logs import log_visit
    from octavo.server.metrics import ServerMetrics
    from octavo.server.state import ServerState

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # signals are this module's matter

    tell: list[Callable[[Visit], None]] = []
    tracer: Tracer | None = None
    if config.log_format == "json":
        tell.append(log_visit)
    if config.otlp_traces_endpoint is not None:
        from octavo.server.tracing import Tracer

        tracer = Tracer.start(config.otlp_traces_endpoint)
        tell.append(tracer.record)
    state = ServerState(config, ServerMetrics(), keys, tell)
    options = uvicorn.Config(
        build_app(state),
        http=bounded_protocol(config.limits),
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=config.limits.keep_alive_timeout_seconds,  # type: ignore[arg-type]  # any number of seconds
        timeout_graceful_shutdown=1,
    )
    options.load()
    options.ssl = tls  # made and checked before the port was taken
    return state, Server(options), tracer


async def _close_http(http: uvicorn.Server, serving: asyncio.Task[None]) -> None:
    """Closes what is open: what is still in flight by now has had its time."""
    http.should_exit = True
    await asyncio.wait((serving,), timeout=5.0)
    http.force_exit = True
    if not serving.done():
        serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving


def _load_front_early(model: str) -> Front | None:
    """None where the files are not here yet, or wrong: the engine fetches them, or says what is wrong."""
    from octavo.errors import ModelFileError

    try:
        return _load_front(model)
    except ModelFileError:
        return None


def _load_front(model: str) -> Front:
    from octavo.server.text_parts import load_front

    return load_front(model)
