"""What `octavo blocks` needs before the first step: a scheduler, an executor and a request, for either form.

`fake_stage` builds core and the fake executor around the user's words; `model_stage` takes both from a real engine.
Refuses to print. A stage is a context manager: an engine's threads end with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

from octavo.cli.paging import PagingStory, Step
from octavo.cli.paging_text import Notation
from octavo.cli.width import visible
from octavo.config import DEFAULT_MODEL, EngineConfig, forced_isa
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
    """What the user asked for, besides the prompt."""

    block_size: int
    pool: tuple[int, int] | None  # first and last physical block
    share: int
    max_tokens: int | None

    def num_new_tokens(self, num_prompt: int) -> int:
        """Enough to fill the prompt's last block, to write one token into the next, and to draw one more."""
        return self.max_tokens or -num_prompt % self.block_size + 2

    def first_block(self) -> int:
        return self.pool[0] if self.pool else 0

    def num_blocks(self, num_prompt: int) -> int:
        """Of the pool asked for; else what all continuations hold at once, and SPARE_BLOCKS."""
        if self.pool:
            return self.pool[1] - self.pool[0] + 1
        shared = num_prompt // self.block_size
        total = -(-(num_prompt + self.num_new_tokens(num_prompt)) // self.block_size)
        return shared + self.share * (total - shared) + SPARE_BLOCKS


class Stage:
    """Everything is ready; `steps` runs it, once."""

    def __init__(
        self,
        story: PagingStory,
        request: Request,
        notation: Notation,
        executor: Executor,
        executor_name: str,
    ) -> None:
        self._story = story
        self._request = request
        self._executor = executor
        self.notation = notation
        self.executor_name = executor_name

    @property
    def prompt(self) -> tuple[int, ...]:
        return self._request.prompt_token_ids

    def steps(self) -> Iterator[Step]:
        return self._story.tell(self._request)

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._executor.close()


def fake_stage(words: Sequence[str], wanted: Wanted) -> Stage:
    """The words as prompt; the answer is a full stop and the prompt over again, each sample from another word on."""
    from octavo.executors.fake import FakeExecutor

    vocabulary = list(dict.fromkeys([*words, *SENTENCE_ENDS]))
    prompt = tuple(vocabulary.index(word) for word in words)
    ends = [vocabulary.index(end) for end in SENTENCE_ENDS]

    def next_token(history: tuple[int, ...], _seed: int, index: int) -> int:
        place = len(history) - len(prompt)
        return ends[index % len(ends)] if place == 0 else prompt[(place - 1 + index) % len(prompt)]

    num_blocks = wanted.num_blocks(len(prompt))
    executor = FakeExecutor(
        vocab_size=len(vocabulary), num_blocks=num_blocks, block_size=wanted.block_size, next_token=next_token
    )
    return _stage(prompt, wanted, executor, "fake executor", lambda token: token_word(vocabulary[token].encode()))


def model_stage(text: str, model: str | None, wanted: Wanted) -> Stage:
    """The text as the model's tokenizer cuts it, continued by the model itself through a pool of the wanted size.

    Raises BadRequest, ConfigError and ModelFileError.
    """
    from octavo.engine.build import build_engine
    from octavo.engine.progress import LoadingBar

    if len(text) > MAX_TEXT_CHARACTERS:
        raise BadRequest(f"the text has {len(text):,} characters, the limit here is {MAX_TEXT_CHARACTERS:,}")
    most_tokens = len(text.encode("utf-8", "replace")) + MAX_SPECIAL_TOKENS  # a token has at least one byte
    config = EngineConfig(
        model=model or DEFAULT_MODEL,
        executor="auto" if wanted.block_size % 16 == 0 or model == "fake" else "reference",
        isa=forced_isa(),
        block_size=wanted.block_size,
        num_gpu_blocks_override=wanted.num_blocks(most_tokens),
        max_num_seqs=wanted.share,
    )
    with LoadingBar() as bar:
        engine = build_engine(config, bar.show)
    tokenizer, info = engine.tokenizer, engine.info
    prompt = tuple(tokenizer.encode(text))
    if not prompt:
        raise BadRequest("the text is empty; give at least one word")
    if len(engine.scheduler.config.group_windows) > 1:
        raise BadRequest(f"{info.model} keeps several block tables a sequence; this example shows models with one")
    return _stage(
        prompt,
        wanted,
        engine.executor,
        f"{info.model}, {info.executor} executor",
        lambda token: token_word(tokenizer.token_bytes(token)),
        info.max_model_len,
    )


def _stage(
    prompt: tuple[int, ...],
    wanted: Wanted,
    executor: Executor,
    executor_name: str,
    token: Callable[[int], str],
    max_model_len: int | None = None,
) -> Stage:
    """Core's scheduler over a pool of the wanted size, and one request for it."""
    num_blocks, num_new = wanted.num_blocks(len(prompt)), wanted.num_new_tokens(len(prompt))
    scheduler = Scheduler(
        SchedulerConfig(
            num_blocks=num_blocks,
            block_size=wanted.block_size,
            max_model_len=max_model_len or len(prompt) + num_new,
            max_num_seqs=wanted.share,
            max_num_batched_tokens=max(MAX_CHUNK_TOKENS, wanted.share),
        )
    )
    sampling = SamplingParams(
        n=wanted.share, temperature=0.0 if wanted.share == 1 else 1.0, max_tokens=num_new, ignore_eos=True
    )
    request = Request(
        request_id="blocks", prompt_token_ids=prompt, sampling=sampling, seed=0, end_token_ids=(), arrival_time=0.0
    )
    story = PagingStory(scheduler, executor, num_blocks, wanted.block_size)
    notation = Notation(
        token=token,
        block_size=wanted.block_size,
        num_blocks=num_blocks,
        first_block=wanted.first_block(),
        num_sequences=wanted.share,
    )
    return Stage(story, request, notation, executor, executor_name)


def token_word(data: bytes) -> str:
    """A token in print: characters as they are, blanks as ␣, bytes that are only part of a character as <E2><9C>."""
    text = data.decode("utf-8", "surrogateescape")
    return "".join(
        f"<{ord(char) - 0xDC00:02X}>" if 0xDC80 <= ord(char) <= 0xDCFF else "␣" if char == " " else visible(char)
        for char in text
    )
