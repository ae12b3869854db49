"""POST /v1/completions: one or many prompts in, n completions of each out, choice i * n + j for sample j of prompt i.

Refuses what schemas.py and convert.py refuse. `echo` puts the prompt before the answer, with its log-probabilities
where `logprobs` is set; with max_tokens 0 nothing is generated (scoring, as lm-eval does it).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import Request, Response

from octavo.errors import BadRequest
from octavo.outputs import SequenceDelta, TokenLogprobs
from octavo.sampling_params import SamplingParams
from octavo.server.errors import json_response
from octavo.server.generation import Answer, Generation
from octavo.server.json_pieces import written
from octavo.server.openai.call import Call, Routes
from octavo.server.openai.convert import check_prompt_ids, check_samples, check_work, completion_sampling
from octavo.server.openai.logprobs import CompletionLogprobs, joined, prompt_logprobs
from octavo.server.openai.parse import read
from octavo.server.openai.prompt_list import encoded, listed
from octavo.server.openai.schemas import CompletionRequest, ForkRequest
from octavo.server.openai.thinking import is_open_after, with_budget
from octavo.server.state import Loaded
from octavo.server.truncation import Truncation


async def create_completion(routes: Routes, http: Request) -> Response:
    body = await read(http, CompletionRequest, routes.state.config.limits, routes.unknown_names)
    call = CompletionCall(routes, http, body)
    sampling = completion_sampling(body, await call.grammar())
    info, limits = call.loaded.info, routes.state.config.limits
    sampling = _with_infill(sampling, body, call.loaded)
    sampling.check_against_model(info.vocab_size)
    texts = _prompts(body)
    check_samples(len(texts), body.n or 1, limits)
    truncation = Truncation.of(body.truncate_prompt_tokens, body.truncation_side, info, sampling.max_tokens)
    for prompt, ids in zip(texts, await _encode(routes, body, texts, truncation), strict=True):
        check_prompt_ids(ids, info, "prompt", sampling.max_tokens)
        call.add_prompt(ids if truncation is not None else prompt, ids)
    check_work(call.prompts, sampling, info, limits)
    if call.is_echo_only:
        return await call.echo_only(sampling)
    generation = call.generation(call.prompts, call.samplings(sampling))
    if body.stream:
        return call.stream(generation, call.chunks, "text_completion")
    return json_response(await call.whole(await generation.collect(), generation))


def _prompts(body: CompletionRequest) -> list[str | list[int]]:
    """The prompts of the call. Raises BadRequest when there is none, or an empty one."""
    prompts = listed(body.prompt)
    if not prompts or not all(prompts):
        raise BadRequest("prompt is empty; send at least one token", param="prompt")
    return prompts


def _with_infill(sampling: SamplingParams, body: CompletionRequest, loaded: Loaded) -> SamplingParams:
    """Of an answer that fills the hole before `suffix`. Raises BadRequest."""
    if not body.suffix:
        return sampling
    infill = loaded.check_infill()
    for name, value in (("echo", body.echo), ("truncate_prompt_tokens", body.truncate_prompt_tokens)):
        if value:
            raise BadRequest(f"{name} does not go with suffix, whose prompt is made of both; leave it out", param=name)
    return infill.ended(sampling)


async def _encode(
    routes: Routes, body: CompletionRequest, prompts: list[str | list[int]], truncation: Truncation | None
) -> list[list[int]]:
    loaded, add_special_tokens = routes.state.loaded, body.add_special_tokens is not False
    if body.suffix:
        return await loaded.encoder.encode_infill(
            prompts, body.suffix, loaded.check_infill(), add_special_tokens=add_special_tokens
        )
    return await encoded(loaded, prompts, truncation, add_special_tokens=add_special_tokens, param="prompt")


class CompletionCall(Call):
    """Also of the branches of a fork, which have no prompt here."""

    def __init__(
        self, routes: Routes, http: Request, body: CompletionRequest | ForkRequest, *, prefix: str = "cmpl"
    ) -> None:
        super().__init__(routes, http, body, prefix=prefix, kind="text_completion")
        self.prompts: list[list[int]] = []
        self._texts: list[str] = []  # of the prompts, where they are echoed
        self._echo = bool(body.echo)
        self._num_top = body.logprobs
        self._num_samples = body.n or 1
        self._max_tokens = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
        self._wants_ids = bool(body.return_token_ids)
        self._streams: dict[int, CompletionLogprobs | None] = {}  # by choice, once its first chunk was sent
        self._at_prompt: dict[int, Sequence[TokenLogprobs | None]] = {}  # by prompt; comes once, n samples echo it
        self._skip_special = body.skip_special_tokens is not False

    def add_prompt(self, prompt: str | list[int], ids: list[int]) -> None:
        self.prompts.append(ids)
        if self._echo:
            self._texts.append(prompt if isinstance(prompt, str) else self.prompt_text(ids))

    def samplings(self, sampling: SamplingParams) -> list[SamplingParams]:
        """Of each prompt: the thinking that one of them began counts as such. Raises BadRequest."""
        if self.body.thinking_token_budget is None or sampling.grammar is not None:
            return [sampling] * len(self.prompts)
        return [
            with_budget(sampling, self.body, self.loaded, is_open=is_open_after(self.prompt_text(ids), self.loaded))
            for ids in self.prompts
        ]

    @property
    def is_echo_only(self) -> bool:
        """Nothing is to be computed: the prompts come back as they are."""
        return self._max_tokens == 0 and self._num_top is None and self.body.prompt_logprobs is None

    async def echo_only(self, sampling: SamplingParams) -> Response:
        generation = self.generation(self.prompts, sampling)
        if self.body.stream:
            raise BadRequest("max_tokens is 0: there is nothing to stream; leave stream out", param="stream")
        answers = [Answer(finish_reason="length") for _ in self.prompts]
        return json_response(await self.whole(answers, generation))

    def chunks(self, number: int, delta: SequenceDelta) -> Iterator[dict[str, Any]]:
        """One sample's next piece. With max_tokens 0 one sample stands for all n."""
        if delta.prompt_logprobs is not None:
            self._at_prompt[number] = delta.prompt_logprobs
        copies = self._num_samples if self._max_tokens == 0 else 1
        for copy in range(copies):
            index = number * self._num_samples + delta.index + copy
            if (choice := self._chunk(number, index, delta)) is not None:
                yield {"choices": [choice]}

    def empty_choice(self, number: int) -> dict[str, Any]:
        return {"index": number * self._num_samples, "text": "", "logprobs": None, "finish_reason": None}

    def _chunk(self, number: int, index: int, delta: SequenceDelta) -> dict[str, Any] | None:
        is_first = index not in self._streams
        if is_first:
            self._streams[index] = self._counter(number)
        text, logprobs = delta.text, None
        counter = self._streams[index]
        if is_first and self._echo:
            text = self._texts[number] + text
        if counter is not None:
            logprobs = self._echo_logprobs(counter, number, self._at_prompt.get(number)) if is_first else None
            piece = counter.piece(delta.logprobs)
            logprobs = joined(logprobs, piece) if logprobs is not None else piece
        says_nothing = not (text or delta.finish_reason or (logprobs and logprobs["tokens"]))
        if says_nothing and not self._wants_ids and not is_first:
            return None
        choice: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": delta.finish_reason,
        }
        if delta.finish_reason is not None:
            choice["stop_reason"] = delta.stop_reason
        if self._wants_ids:
            choice["token_ids"] = list(delta.token_ids)
        if is_first:
            choice |= self._about_prompt(number, self._at_prompt.get(number))
        return choice

    def _about_prompt(self, number: int, entries: Sequence[TokenLogprobs | None] | None) -> dict[str, Any]:
        """What was asked for; in a stream once a choice, in its first chunk."""
        told: dict[str, Any] = {}
        if self.body.prompt_logprobs is not None:
            told["prompt_logprobs"] = None if entries is None else prompt_logprobs(entries, self.names)
        if self._wants_ids and self.prompts:
            told["prompt_token_ids"] = self.prompts[number]
        if self.body.return_prompt_text and self.prompts:
            told["prompt_text"] = self.prompt_text(self.prompts[number])
        return told

    async def whole(self, answers: list[Answer], generation: Generation) -> dict[str, Any]:
        if self._max_tokens == 0:  # one sample of each prompt stands for all n
            answers = [answer for answer in answers for _ in range(self._num_samples)]
        made = self.head() | {
            "choices": await written(self._choice(index, answers) for index in range(len(answers))),
            "usage": generation.usage.to_wire(),
        }
        return made | self.explanation(generation)

    def _choice(self, index: int, answers: list[Answer]) -> dict[str, Any]:
        number = index // self._num_samples
        answer = answers[index]
        at_prompt = answers[number * self._num_samples].prompt_logprobs
        logprobs = None
        if (counter := self._counter(number)) is not None:
            logprobs = counter.piece(()) if not self._echo else self._echo_logprobs(counter, number, at_prompt)
            piece = counter.piece(answer.logprobs)
            logprobs = joined(logprobs, piece) if logprobs is not None else piece
        choice: dict[str, Any] = {
            "index": index,
            "text": self._texts[number] + answer.text if self._echo else answer.text,
            "logprobs": logprobs,
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,
        }
        if self._wants_ids:
            choice["token_ids"] = answer.token_ids
        return choice | self._about_prompt(number, at_prompt)

    def _counter(self, number: int) -> CompletionLogprobs | None:
        """Of a sample of prompt `number`; None where no log-probabilities are asked for."""
        del number
        if self._num_top is None:
            return None
        return CompletionLogprobs(self.names, self._num_top, skip_special=self._skip_special)

    def _echo_logprobs(
        self, counter: CompletionLogprobs, number: int, entries: Sequence[TokenLogprobs | None] | None
    ) -> dict[str, Any] | None:
        if not self._echo or entries is None:
            return None
        return counter.prompt(self.prompts[number], entries)
