"""The engine in this process, for one person at a terminal: open it with progress on stderr, ask, listen.

Promise: `stream` yields what each step adds, and a stream closed early aborts its request, whose blocks are free
before the next one. Refuses several requests at once: that is the server's work. What breaks inside a step (a second
Ctrl-C too) breaks the engine: it is closed and passes on.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from octavo.config import EngineConfig
from octavo.engine.build import build_engine, make_chat_template
from octavo.engine.engine import Engine
from octavo.engine.engine_request import EngineRequest, new_request_id
from octavo.errors import BadRequest, InternalError
from octavo.outputs import SequenceDelta
from octavo.sampling_params import SamplingParams

if TYPE_CHECKING:
    from octavo.engine.info import EngineInfo


class Session:
    """Made by `open`; a context manager, so that the engine's threads and memory end with it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._template = make_chat_template(engine)
        self._is_closed = False

    @classmethod
    def open(cls, config: EngineConfig) -> Session:
        """Loads the model. Raises ConfigError and ModelFileError."""
        from octavo.engine.progress import LoadingBar

        with LoadingBar() as bar:
            engine = build_engine(config, bar.show)
        return cls(engine)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    @property
    def has_template(self) -> bool:
        return self._template is not None

    def encode(self, text: str) -> tuple[int, ...]:
        """A text to be continued, with the special tokens the model wants around it. Raises BadRequest."""
        return tuple(self._engine.tokenizer.encode(text))

    def render(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """A conversation as the model's template writes it, open for its answer. Raises BadRequest."""
        if self._template is None:
            raise BadRequest(f"{self.info.model} has no chat template")
        text = self._template.render(messages, add_generation_prompt=True)
        return tuple(self._engine.tokenizer.encode(text, add_special_tokens=False))

    def stream(self, prompt: tuple[int, ...], sampling: SamplingParams) -> Generator[SequenceDelta]:
        """What each step adds to the one sample. Closing it aborts the request. Raises BadRequest, InternalError."""
        request = EngineRequest(new_request_id(), prompt, sampling)
        self._engine.add_request(request)
        try:
            while self._engine.has_unfinished:
                for delta in self._step():
                    if delta.finish_reason == "error":
                        raise InternalError(delta.error or "the answer broke off")
                    yield delta
        finally:
            if not self._is_closed:
                self._engine.abort(request.request_id)
                while self._engine.has_unfinished:
                    self._step()

    def _step(self) -> list[SequenceDelta]:
        """A step that raises leaves its plan in flight for ever: the engine must not be asked again."""
        try:
            return self._engine.step()
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        """Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._engine.close()
