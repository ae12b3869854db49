"""What `octavo blocks` needs before the first step: a scheduler, an executor and the requests of a story.

`fake_stage` builds core and the fake executor around the user's words; `model_stage` takes both from a real engine.
Refuses to print. A stage is a context manager: an engine's threads end with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

from octavo.cli.paging import Fork, PagingStory
from octavo.cli.paging_steps import Step
from octavo.cli.paging_text import Notation
from octavo.cli.width import visible
from octavo.config import DEFAULT_MODEL, EngineConfig, forced_isa
from octavo.core.block import SeqId
from octavo.core.protocols import Executor
from octavo.core.request import Request
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_config import SchedulerConfig
from octavo.errors import BadRequest
from octavo.sampling_params import SamplingParams

SENTENCE_ENDS = (".", "!", "?", ";", ":")  # how the fake executor continues: each sample in its own way
MAX_TEXT_CHARACTERS = 20_000
MAX_SPECIAL_TOKENS = 8  # that a tokenizer may put around a text
MAX_CHUNK_TOKENS = 2048  # a longer prompt is shown in several steps
SPARE_BLOCKS = 2  # of a pool nobody asked for: enough, and a little to see that it is not used


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user asked for, besides the prompt. At most one of share, beams, fork_at and beside tells a story."""

    block_size: int = 4
    pool: tuple[int, int] | None = None  # first and last physical block
    share: int = 1  # samples of the prompt
    beams: int | None = None  # width of a search
    fork_at: int | None = None  # tokens of the answer that branches keep
    branches: int = 2
    after_end: bool = False  # they come when the answer is complete
    max_tokens: int | None = None
    window: int | None = None  # of a second KV group

    @property
    def windows(self) -> tuple[int | None, ...]:
        return (None,) if self.window is None else (None, self.window)

    @property
    def num_sequences(self) -> int:
        """Of one prompt, at once."""
        return self.beams or (self.share if self.fork_at is None else 1 + self.branches)

    def num_new_tokens(self, num_prompt: int) -> int:
        """Enough to fill the prompt's last block, to write one token into the next, and to draw one more.

        A branch is as long as its origin; its first token is drawn, run, and followed by one more.
        """
        enough = -num_prompt % self.block_size + 2
        return self.max_tokens or (enough if self.fork_at is None else max(enough, self.fork_at + 2))

    def first_block(self) -> int:
        return self.pool[0] if self.pool else 0

    def num_blocks(self, *prompts: int) -> int:
        """Of the pool asked for; else what all hold at once after prompts of these lengths, and SPARE_BLOCKS."""
        if self.pool:
            return self.pool[1] - self.pool[0] + 1
        totals = [-(-(num_prompt + self.num_new_tokens(num_prompt)) // self.block_size) for num_prompt in prompts]
        if self.window is not None:  # what lies in a window is not shared for long
            return len(self.windows) * self.num_sequences * sum(totals) + SPARE_BLOCKS
        shared = [num_prompt // self.block_size for num_prompt in prompts]
        own = sum(total - full for total, full in zip(totals, shared, strict=True))
        return sum(shared) + self.num_sequences * own + SPARE_BLOCKS

    def check(self, num_prompt: int) -> None:
        """Raises BadRequest where branches would have nothing to add."""
        num_new, kept = self.num_new_tokens(num_prompt), self.fork_at
        if kept is not None and num_new <= max(kept, 1):
            raise BadRequest(
                f"--fork-at is {kept} and --max-tokens is {num_new}, so a branch would have nothing to add; "
                "lower --fork-at or raise --max-tokens"
            )


class Stage:
    """Everything is ready; `steps` runs it, once."""

    def __init__(
        self, story: PagingStory, script: Script, notation: Notation, executor: Executor, executor_name: str
    ) -> None:
        self._story = story
        self._script = script
        self._executor = executor
        self.notation = notation
        self.executor_name = executor_name

    @property
    def prompts(self) -> list[tuple[int, ...]]:
        return [request.prompt_token_ids for request in self._script.requests]

    def steps(self) -> Iterator[Step]:
        return self._story.tell(self._script.requests, self._script.fork)

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._executor.close()


class Script:
    """The requests of a story."""

    def __init__(self, prompts: Sequence[tuple[int, ...]], wanted: Wanted) -> None:
        self._wanted = wanted
        self._num_prompt = len(prompts[0])
        self.requests = [self._request(f"blocks-{place}", prompt) for place, prompt in enumerate(prompts)]
        self.fork: Fork | None = None
        if wanted.fork_at is not None:
            self.fork = Fork(wanted.fork_at, not wanted.after_end, self._branches)

    def _request(self, request_id: str, prompt: tuple[int, ...]) -> Request:
        wanted = self._wanted
        num_new = wanted.num_new_tokens(len(prompt))
        if wanted.beams is not None:
            sampling = SamplingParams(
                n=wanted.beams, beam_width=wanted.beams, use_beam_search=True, max_tokens=num_new, ignore_eos=True
            )
        else:
            temperature = 0.0 if wanted.share == 1 else 1.0
            sampling = SamplingParams(n=wanted.share, temperature=temperature, max_tokens=num_new, ignore_eos=True)
        return Request(request_id, prompt, sampling, seed=0, end_token_ids=(), arrival_time=0.0)

    def _branches(self, prompt: tuple[int, ...], origin: SeqId | None) -> list[Request]:
        """As an engine makes them: each a request of its own, with a seed of its own."""
        num_kept = len(prompt) - self._num_prompt
        num_new = self._wanted.num_new_tokens(self._num_prompt) - num_kept
        sampling = SamplingParams(temperature=1.0, max_tokens=num_new, ignore_eos=True)
        return [
            Request(
                f"branch-{place}",
                prompt,
                sampling,
                seed=place,
                end_token_ids=(),
                arrival_time=0.0,
                num_given_tokens=num_kept,
                origin=origin,
            )
            for place in range(1, self._wanted.branches + 1)
        ]


def fake_stage(words: Sequence[str], beside: Sequence[str] | None, wanted: Wanted) -> Stage:
    """The words as prompt, and those of a second request; an answer is a full stop and the prompt over again, each
    sample and each branch from another word on. Beams have other words after each history. Raises BadRequest.
    """
    from octavo.engine.fake_model import fake_logprob_step
    from octavo.executors.fake import FakeExecutor, hashed_token

    vocabulary = list(dict.fromkeys([*words, *(beside or ()), *SENTENCE_ENDS]))
    prompts = [tuple(map(vocabulary.index, each)) for each in (words, beside) if each is not None]
    ends = [vocabulary.index(end) for end in SENTENCE_ENDS]
    if wanted.beams is not None and wanted.beams > len(vocabulary):
        raise BadRequest(
            f"--beams is {wanted.beams}, and these words with the ends of sentences are {len(vocabulary)}; "
            "lower it or give more words"
        )

    def next_token(history: tuple[int, ...], seed: int, index: int) -> int:
        begun = [prompt for prompt in prompts if history[: len(prompt)] == prompt]
        prompt, voice = max(begun, key=len), seed + index
        place = len(history) - len(prompt)
        return ends[voice % len(ends)] if place == 0 else prompt[(place - 1 + voice) % len(prompt)]

    executor = FakeExecutor(
        vocab_size=len(vocabulary),
        num_blocks=wanted.num_blocks(*map(len, prompts)),
        block_size=wanted.block_size,
        group_windows=wanted.windows,
        next_token=next_token if wanted.beams is None else hashed_token,
        logprob_step=fake_logprob_step,
    )
    speaker = _Speaker(executor, "fake executor", lambda token: token_word(vocabulary[token].encode()), wanted.windows)
    return _stage(prompts, wanted, speaker)


def model_stage(text: str, beside: str | None, model: str | None, wanted: Wanted) -> Stage:
    """The texts as the model's tokenizer cuts them, continued by the model itself through a pool of the wanted size.

    Raises BadRequest, ConfigError and ModelFileError.
    """
    from octavo.engine.build import build_engine
    from octavo.engine.progress import LoadingBar

    texts = [each for each in (text, beside) if each is not None]
    for each in texts:
        if len(each) > MAX_TEXT_CHARACTERS:
            raise BadRequest(f"the text has {len(each):,} characters, the limit here is {MAX_TEXT_CHARACTERS:,}")
    most_tokens = [len(each.encode("utf-8", "replace")) + MAX_SPECIAL_TOKENS for each in texts]  # a byte each or more
    config = EngineConfig(
        model=model or DEFAULT_MODEL,
        executor="auto" if wanted.block_size % 16 == 0 or model == "fake" else "reference",
        isa=forced_isa(),
        block_size=wanted.block_size,
        num_gpu_blocks_override=wanted.num_blocks(*most_tokens),
        max_num_seqs=len(texts) * wanted.num_sequences,
    )
    with LoadingBar() as bar:
        engine = build_engine(config, bar.show)
    tokenizer, info = engine.tokenizer, engine.info
    prompts = [tuple(tokenizer.encode(each)) for each in texts]
    if not all(prompts):
        raise BadRequest("the text is empty; give at least one word")
    if len(engine.scheduler.config.group_windows) > 1:
        raise BadRequest(
            f"{info.model} keeps {len(engine.scheduler.config.group_windows)} block tables a sequence, and a text is "
            "shown with models that keep one; --tokens A,B,C --window TOKENS shows two"
        )
    speaker = _Speaker(
        engine.executor,
        f"{info.model}, {info.executor} executor",
        lambda token: token_word(tokenizer.token_bytes(token)),
        engine.scheduler.config.group_windows,
        info.max_model_len,
    )
    return _stage(prompts, wanted, speaker)


@dataclass(frozen=True, slots=True)
class _Speaker:
    """Who continues the prompts."""

    executor: Executor
    name: str
    token: Callable[[int], str]  # printable
    windows: tuple[int | None, ...]
    max_model_len: int | None = None


def _stage(prompts: Sequence[tuple[int, ...]], wanted: Wanted, speaker: _Speaker) -> Stage:
    """Core's scheduler over a pool of the wanted size, and the requests for it."""
    wanted.check(len(prompts[0]))
    num_blocks = wanted.num_blocks(*map(len, prompts))
    num_sequences = len(prompts) * wanted.num_sequences
    scheduler = Scheduler(
        SchedulerConfig(
            num_blocks=num_blocks,
            block_size=wanted.block_size,
            max_model_len=speaker.max_model_len
            or max(len(each) + wanted.num_new_tokens(len(each)) for each in prompts),
            max_num_seqs=num_sequences,
            max_num_batched_tokens=max(MAX_CHUNK_TOKENS, num_sequences),
            group_windows=speaker.windows,
        )
    )
    story = PagingStory(scheduler, speaker.executor, num_blocks, wanted.block_size)
    notation = Notation(
        token=speaker.token,
        block_size=wanted.block_size,
        num_blocks=num_blocks,
        first_block=wanted.first_block(),
        num_sequences=num_sequences,
        windows=speaker.windows,
    )
    return Stage(story, Script(prompts, wanted), notation, speaker.executor, speaker.name)


def token_word(data: bytes) -> str:
    """A token in print: characters as they are, blanks as ␣, bytes that are only part of a character as <E2><9C>."""
    text = data.decode("utf-8", "surrogateescape")
    return "".join(
        f"<{ord(char) - 0xDC00:02X}>" if 0xDC80 <= ord(char) <= 0xDCFF else "␣" if char == " " else visible(char)
        for char in text
    )
