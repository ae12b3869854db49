"""`LLM`: the engine without a server, in this process.

    with LLM("smollm2") as llm:
        for output in llm.generate(["Once upon a time"], SamplingParams(max_tokens=32)):
            print(output.outputs[0].text)

Refuses threads: one caller at a time. Results come in the order of the prompts, whatever finished first. Invariant:
after `generate` returns or raises, no request of it is left in the engine.
"""

from __future__ import annotations

import struct
import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from octavo.config import DEFAULT_MODEL, EngineConfig, forced_isa
from octavo.engine.build import build_engine, make_chat_template
from octavo.engine.engine_request import EngineRequest, ForkPoint, new_request_id
from octavo.engine.info import EngineInfo, EngineStats
from octavo.engine.interrupt import Interrupt
from octavo.engine.progress import LoadingBar
from octavo.errors import BadRequest, InternalError
from octavo.outputs import CompletionOutput, EmbeddingOutput, RequestOutput, SequenceDelta
from octavo.pooling_params import Pooling, PoolingParams
from octavo.sampling_params import SamplingParams

if TYPE_CHECKING:
    from rich.progress import Progress

    from octavo.loading.tokenizer import TokenizerLike

Prompt = str | Sequence[int]
Message = Mapping[str, Any]  # {"role": ..., "content": ...}

PROGRESS_MIN_REQUESTS = 2  # a single short answer needs no bar
_PROMPT_KINDS = "prompts must be text, token ids (whole numbers), or a list of such"
_MESSAGE_KINDS = 'messages must be a list of {"role": ..., "content": ...}, or a list of such lists'
_PARAM_KINDS = "sampling_params must be one SamplingParams, or a list of them"


class LLM:
    """Options are those of EngineConfig, by name; `isa` is OCTAVO_ISA where it is not given. Fetches and loads the
    model, with a bar where stderr is a terminal. Raises ConfigError or ModelFileError when the engine cannot start."""

    def __init__(self, model: str = DEFAULT_MODEL, **options: Any) -> None:
        self._config = EngineConfig.from_options({"model": model, "isa": forced_isa(), **options})
        with LoadingBar() as bar:
            self._engine = build_engine(self._config, bar.show)
        self._template = make_chat_template(self._engine)
        self._closing = weakref.finalize(self, self._engine.close)  # also at exit: a tier gets what is cached

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    @property
    def tokenizer(self) -> TokenizerLike:
        return self._engine.tokenizer

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """One prompt (text or token ids) or a list of them; parameters for all, or one for each.

        `progress`: a bar on stderr; None: when stderr is a terminal and there is more than one prompt. Raises
        BadRequest before anything runs when a prompt or parameter is out of bounds; KeyboardInterrupt ends the
        requests and passes on.
        """
        self._check_open()
        listed = _as_prompts(prompts)
        params = _as_params(sampling_params, len(listed))
        wanted = [self._output(prompt) for prompt in listed]
        show = sys.stderr.isatty() and len(wanted) >= PROGRESS_MIN_REQUESTS if progress is None else progress
        return self._run(wanted, params, show)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool = True,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """One conversation or a list of them, rendered with the model's template. Raises BadRequest without one."""
        self._check_open()
        if self._template is None:
            raise BadRequest(f"{self.info.model} has no chat template; use generate with a prompt of your own")
        conversations = _as_conversations(messages)
        params = _as_params(sampling_params, len(conversations))
        texts = [self._template.render(each, add_generation_prompt=add_generation_prompt) for each in conversations]
        wanted = [
            RequestOutput(new_request_id(), text, self._engine.tokenizer.encode(text, add_special_tokens=False), [])
            for text in texts
        ]
        show = sys.stderr.isatty() and len(wanted) >= PROGRESS_MIN_REQUESTS if progress is None else progress
        return self._run(wanted, params, show)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: Pooling = "mean",
        dimensions: int | None = None,
        normalize: bool = True,
        progress: bool | None = None,
    ) -> list[EmbeddingOutput]:
        """A vector for one prompt (text or token ids) or for each of a list: its tokens' final hidden states pooled
        ("mean" of all, or the "last"), the first `dimensions` columns, of length 1 unless `normalize` is False.

        `progress` as for `generate`. Raises BadRequest before anything runs when a prompt or parameter is out of
        bounds, InternalError where the model's state is not finite.
        """
        self._check_open()
        sampling = SamplingParams(max_tokens=0, pooling=PoolingParams(pooling, dimensions, normalize))
        found = self.generate(prompts, sampling, progress=progress)
        return [_embedding_output(output) for output in found]

    def fork(
        self,
        request: RequestOutput | str,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        index: int = 0,
        num_tokens: int | None = None,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """Other continuations of an earlier answer: one for each of the parameters, each behind the first `num_tokens`
        tokens of its sample `index` (None: all but an end token), with the blocks up to there shared.

        `request`: what `generate`, `chat` or `fork` gave, or its request_id. Raises NotFound where it is unknown, or
        ended or was forked too long ago (ten minutes, a thousand requests), and BadRequest where there is no such
        sample or token.
        """
        self._check_open()
        call_id = request.request_id if isinstance(request, RequestOutput) else request
        if not isinstance(call_id, str):
            raise BadRequest("request must be a RequestOutput or its request_id", param="request")
        for name, value in (("index", index), ("num_tokens", num_tokens)):
            if not isinstance(value, int | None) or isinstance(value, bool):
                raise BadRequest(f"{name} must be a whole number", param=name)
        params = _as_params(sampling_params, None)
        branch = self._engine.branch(ForkPoint(call_id, index, num_tokens), "")
        point = ForkPoint(call_id, index, branch.num_tokens)
        wanted = [RequestOutput(new_request_id(), None, list(branch.prompt_token_ids), []) for _ in params]
        show = sys.stderr.isatty() and len(wanted) >= PROGRESS_MIN_REQUESTS if progress is None else progress
        return self._run(wanted, params, show, point)

    def close(self) -> None:
        """Frees the model. Idempotent."""
        self._closing()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if not self._closing.alive:
            raise BadRequest("this LLM was closed; make another")

    def _output(self, prompt: str | list[int]) -> RequestOutput:
        if isinstance(prompt, str):
            return RequestOutput(new_request_id(), prompt, self._engine.tokenizer.encode(prompt), [])
        return RequestOutput(new_request_id(), None, prompt, [])

    def _run(
        self,
        wanted: Sequence[RequestOutput],
        params: Sequence[SamplingParams],
        show_progress: bool,
        fork_of: ForkPoint | None = None,
    ) -> list[RequestOutput]:
        """Keeps the engine's queue filled and collects; ends whatever is left when it is interrupted."""
        pairs = list(zip(wanted, params, strict=True))
        for output, sampling in pairs:
            self._engine.check_request(_request(output, sampling, fork_of))
        by_id = {output.request_id: output for output in wanted}
        max_live = min(2 * self.info.max_num_seqs, self._config.max_queue)  # enough to keep every row busy
        num_open: dict[str, int] = {}  # samples that go on, of each request in the engine
        waiting = pairs[::-1]
        with Interrupt() as interrupt, _Bar(len(pairs) if show_progress else 0) as bar:
            try:
                while waiting or num_open:
                    while waiting and len(num_open) < max_live:
                        output, sampling = waiting.pop()
                        _open_samples(output, sampling)
                        self._engine.add_request(_request(output, sampling, fork_of))
                        num_open[output.request_id] = sampling.n
                    for delta in self._step():
                        _collect(by_id[delta.request_id], delta)
                        if delta.finish_reason is not None:
                            num_open[delta.request_id] -= 1
                            if num_open[delta.request_id] == 0:
                                del num_open[delta.request_id]
                                bar.advance()
                    if interrupt.asked:
                        raise KeyboardInterrupt
            finally:
                self._drain(num_open)
        return list(wanted)

    def _step(self) -> list[SequenceDelta]:
        """What breaks a step breaks the engine: it is closed, so that nobody goes on with it."""
        try:
            return self._engine.step()
        except BaseException:
            self.close()
            raise

    def _drain(self, request_ids: Iterable[str]) -> None:
        """Leaves no request behind."""
        if not self._closing.alive:
            return
        for request_id in request_ids:
            self._engine.abort(request_id)
        while self._engine.has_unfinished:
            self._step()
        self._engine.check_idle()


class _Bar:
    """Progress over requests on stderr, or nothing for a total of 0. rich is imported only when it shows."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._progress: Progress | None = None

    def __enter__(self) -> Self:
        if self._total:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

            columns = ("requests", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._progress.start()
            self._task = self._progress.add_task("requests", total=self._total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def advance(self) -> None:
        if self._progress is not None:
            self._progress.advance(self._task)


def _embedding_output(output: RequestOutput) -> EmbeddingOutput:
    if output.embedding is None:
        raise InternalError(output.outputs[0].error or "a prompt ended without a vector")
    vector = list(struct.unpack(f"<{len(output.embedding) // 4}f", output.embedding))
    return EmbeddingOutput(output.request_id, output.prompt_token_ids, vector, output.num_cached_tokens)


def _request(output: RequestOutput, sampling: SamplingParams, fork_of: ForkPoint | None) -> EngineRequest:
    prompt = () if fork_of is not None else tuple(output.prompt_token_ids)
    return EngineRequest(output.request_id, prompt, sampling, fork_of=fork_of)


def _as_prompts(prompts: object) -> list[str | list[int]]:
    """One prompt or several, token ids as plain numbers. Raises BadRequest on what is neither."""
    if isinstance(prompts, str):
        return [prompts]
    listed = _listed(prompts, _PROMPT_KINDS, "prompt")
    if listed and all(isinstance(each, Integral) for each in listed):
        return [_as_token_ids(listed)]
    return [each if isinstance(each, str) else _as_token_ids(each) for each in listed]


def _as_token_ids(prompt: object) -> list[int]:
    listed = _listed(prompt, _PROMPT_KINDS, "prompt")
    if not all(isinstance(each, Integral) and not isinstance(each, bool) for each in listed):
        raise BadRequest(_PROMPT_KINDS, param="prompt")
    return [int(each) for each in listed]


def _as_conversations(messages: object) -> list[list[Message]]:
    """One conversation or several. Raises BadRequest on what is neither."""
    listed = _listed(messages, _MESSAGE_KINDS, "messages")
    if listed and isinstance(listed[0], Mapping):
        listed = [listed]
    conversations = [_listed(each, _MESSAGE_KINDS, "messages") for each in listed]
    if not all(isinstance(message, Mapping) for conversation in conversations for message in conversation):
        raise BadRequest(_MESSAGE_KINDS, param="messages")
    return conversations


def _as_params(given: object, count: int | None) -> list[SamplingParams]:
    """As many as `count`; None: as many as are given."""
    if given is None or isinstance(given, SamplingParams):
        return [given or SamplingParams()] * (1 if count is None else count)
    listed = _listed(given, _PARAM_KINDS, "sampling_params")
    if not all(isinstance(each, SamplingParams) for each in listed):
        raise BadRequest(_PARAM_KINDS, param="sampling_params")
    if count is not None and len(listed) != count:
        raise BadRequest(
            f"{len(listed)} sampling_params for {count} prompts; give one, or one for each", param="sampling_params"
        )
    return listed


def _listed(given: object, kinds: str, param: str) -> list[Any]:
    """The entries of a list, a tuple, an array. Raises BadRequest, saying which `kinds` there are, on anything else."""
    if isinstance(given, str | bytes | bytearray | Mapping) or not isinstance(given, Iterable):
        raise BadRequest(kinds, param=param)
    return list(given)


def _open_samples(output: RequestOutput, sampling: SamplingParams) -> None:
    output.outputs = [
        CompletionOutput(index, logprobs=None if sampling.logprobs is None else []) for index in range(sampling.n)
    ]


def _collect(output: RequestOutput, delta: SequenceDelta) -> None:
    sample = output.outputs[delta.index]
    sample.text += delta.text
    sample.token_ids += delta.token_ids
    if sample.logprobs is not None:
        sample.logprobs += delta.logprobs
    sample.finish_reason, sample.stop_reason = delta.finish_reason, delta.stop_reason
    output.num_cached_tokens = delta.num_cached_tokens
    if delta.prompt_logprobs is not None:
        output.prompt_logprobs = list(delta.prompt_logprobs)
    if delta.embedding is not None:
        output.embedding = delta.embedding
    sample.error = delta.error
    sample.cumulative_logprob, sample.score = delta.cumulative_logprob, delta.score
