"""What the routes share: the configuration, the engine once it is there, and the phase of the process's life.

    LOADING -> READY -> DRAINING          and from any of them -> DEAD

Refuses work in every phase but READY (`unavailable`). One writer: `octavo.server.run` moves the phase on.
"""

from __future__ import annotations

import enum
import functools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from octavo import __version__
from octavo.errors import BadRequest, EngineDead, NotFound
from octavo.server.admission import Admission
from octavo.server.config import ServerConfig
from octavo.server.errors import ServiceUnavailable
from octavo.server.grammar_workers import GrammarWorkers
from octavo.server.infill import Infill
from octavo.server.keys import Keys
from octavo.server.prompts import PromptEncoder
from octavo.server.protocol import EngineLike, GrammarChecker, TemplateLike, TokenizerLike
from octavo.server.responses_api.book import Book
from octavo.server.tools.speech import Speech
from octavo.server.visit import Visit

if TYPE_CHECKING:
    from octavo.server.metrics import ServerMetrics


class Phase(enum.Enum):
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    DEAD = "dead"


class Loaded:
    """What exists once the model is loaded."""

    def __init__(
        self,
        engine: EngineLike,
        tokenizer: TokenizerLike,
        template: TemplateLike | None,
        config: ServerConfig,
        max_queue: int,
        grammars: GrammarChecker | None = None,
    ) -> None:
        info = engine.info
        self.engine = engine
        self.info = info
        self.tokenizer = tokenizer
        self.template = template
        self.grammars: GrammarChecker = grammars or GrammarWorkers(config.limits)
        self.encoder = PromptEncoder(tokenizer, template, info, config.limits)
        source = "" if template is None else template.source
        self.speech = Speech.of(source, config.tool_call_parser, config.reasoning_parser)
        self.fingerprint = f"octavo-{__version__}-{info.executor}-{info.isa}"  # what equal numbers can be expected of
        self.model_names = config.served_model_names or (info.model,)
        capacity = config.limits.max_requests_in_flight or info.max_num_seqs + max_queue
        self.admission = Admission(capacity, lambda: engine.stats().queue_seconds)

    def check_infill(self) -> Infill:
        """How this model is asked to fill in the middle. Raises BadRequest where it cannot be."""
        if self._infill is None:
            raise BadRequest(
                "suffix: this model's tokenizer has no tokens to fill in the middle; leave it out, or serve a model "
                "that was trained for it",
                param="suffix",
            )
        return self._infill

    @property
    def can_infill(self) -> bool:
        return self._infill is not None

    @functools.cached_property
    def _infill(self) -> Infill | None:
        return Infill.of(self.tokenizer)

    def check_model(self, name: str | None) -> str:
        """The name to answer with. Raises NotFound for one that is not served; no name means the first."""
        if name is None:
            return self.model_names[0]
        if name not in self.model_names:
            served = ", ".join(self.model_names)
            raise NotFound(
                f"the model {name[:128]!r} is not served here; this server has: {served}",
                param="model",
                code="model_not_found",
            )
        return name


class ServerState:
    def __init__(
        self,
        config: ServerConfig,
        metrics: ServerMetrics,
        keys: Keys | None = None,
        tell: Sequence[Callable[[Visit], None]] = (),
    ) -> None:
        """`keys`: where they were read already. `tell`: who hears of each request when its answer has ended. Raises
        ConfigError."""
        self.config = config
        self.tell = tuple(tell)
        self.metrics = metrics
        self.keys = Keys(config) if keys is None else keys
        self.responses = Book(config)  # raises ConfigError
        self.phase = Phase.LOADING
        self.created = int(time.time())  # unix seconds; of the model cards
        self._loaded: Loaded | None = None

    def set_ready(self, loaded: Loaded) -> None:
        self._loaded = loaded
        loaded.admission.has_others = self.keys.has_several
        self.metrics.attach(loaded.engine)
        if self.phase is Phase.LOADING:
            self.phase = Phase.READY

    @property
    def is_loaded(self) -> bool:
        return self._loaded is not None

    @property
    def loaded(self) -> Loaded:
        """Raises ServiceUnavailable while the model loads."""
        if self._loaded is None:
            raise self.unavailable()
        return self._loaded

    def is_healthy(self) -> bool:
        """From the step loop's heartbeat; load never makes a server unhealthy."""
        return self.phase is Phase.READY and self._loaded is not None and self._loaded.engine.is_healthy()

    def unavailable(self) -> EngineDead:
        """The error that says why nothing is served now."""
        if self.phase is Phase.LOADING:
            return ServiceUnavailable("the model is still loading; try again in a moment", code="loading")
        if self.phase is Phase.DRAINING:
            return ServiceUnavailable("the server is shutting down; ask another one", code="draining")
        return EngineDead("the engine ended; the server must be started again", code="engine_dead")
