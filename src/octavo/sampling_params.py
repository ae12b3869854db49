"""How the tokens of one request are chosen. Checks every bound itself; knows no engine.

Limits that depend on a model (vocabulary, context) are checked by `check_against_model`, which every way
in passes: the server's door, `LLM`, and the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from octavo.decoding_spec import RepetitionDetection, ThinkingBudget
from octavo.errors import BadRequest, check_whole, short_number
from octavo.grammar_spec import GrammarSpec
from octavo.pooling_params import PoolingParams

MAX_N = 128
MAX_BEAM_WIDTH = 64
MAX_LENGTH_PENALTY = 10.0
MAX_LOGPROBS = 20
MAX_LOGPROB_TOKEN_IDS = 128
MAX_STOP_STRINGS = 64
MAX_STOP_STRING_BYTES = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGIT_BIAS = 1024
MAX_ALLOWED_TOKEN_IDS = 1 << 18
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_BYTES = 1024
GREEDY_TEMPERATURE = 1e-5  # below it, dividing logits overflows float32; the limit of the softmax is the argmax

EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Raises BadRequest (with `param`) on construction when a value is out of its bounds or of another kind.

    `stop` may be given as one string, and it, `stop_token_ids` and `logit_bias` as a list or None: they are kept as
    their types say. Beam search draws nothing and compares whole answers: what changes single draws, or ends a sample
    by its text, is refused with it; `temperature` may keep its default and is 0 then.
    """

    n: int = 1  # answers to one prompt, 1..128
    best_of: int | None = None  # draw so many, n..128, and give out the n of the greatest mean log-probability
    use_beam_search: bool = False  # the n best answers that a beam search finds, best first
    beam_width: int | None = None  # n..64; None: the greater of n and best_of
    length_penalty: float = 1.0  # [-10, 10]; a beam's score is its log-probability / length ** length_penalty
    early_stopping: EarlyStopping = False  # over once beam_width answers are found; "never": unless none can be better
    temperature: float = 1.0  # 0..2; below 1e-5 greedy
    top_p: float = 1.0  # (0, 1]
    top_k: int = 0  # 0 or -1: all
    min_p: float = 0.0  # [0, 1]
    repetition_penalty: float = 1.0  # (0, 10], over prompt and output
    presence_penalty: float = 0.0  # [-2, 2], over output
    frequency_penalty: float = 0.0  # [-2, 2], over output
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # token id -> [-100, 100]
    seed: int | None = None  # 64 bits, signed or unsigned; None: the engine draws one
    max_tokens: int | None = None  # None: until the context is full
    min_tokens: int = 0  # end and stop tokens are masked until then
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None  # how many alternatives beside the token's own; 0..20
    logprob_token_ids: tuple[int, ...] = ()  # with `logprobs`: these are its alternatives, at most 128, not the best
    prompt_logprobs: int | None = None  # the best at prompt positions; such a request takes no prefix hits
    skip_special_tokens: bool = True
    grammar: GrammarSpec | None = None  # what the whole answer must look like; it ends where the grammar does
    allowed_token_ids: tuple[int, ...] = ()  # only these and the end tokens are drawn; (): all
    bad_words: tuple[str, ...] = ()  # texts that are not drawn, with or without a blank before them
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()  # the same as token ids: made of `bad_words` by the engine
    repetition_detection: RepetitionDetection | None = None  # ends an answer that runs in circles
    thinking_token_budget: ThinkingBudget | None = None  # closes the answer's thinking after so many tokens
    pooling: PoolingParams | None = None  # nothing is drawn: a vector is made of the prompt's hidden states

    def __post_init__(self) -> None:
        self._keep_as_typed()
        check_whole("n", self.n, 1, MAX_N)
        _real("temperature", self.temperature, 0.0, 2.0)
        _real("top_p", self.top_p, 0.0, 1.0, open_low=True)
        check_whole("top_k", self.top_k, -1, 2**31 - 1)
        _real("min_p", self.min_p, 0.0, 1.0)
        _real("repetition_penalty", self.repetition_penalty, 0.0, 10.0, open_low=True)
        _real("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _real("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.seed is not None:
            check_whole("seed", self.seed, -(2**63), 2**64 - 1)
        if self.max_tokens is not None:
            asks_prompt_only = self.prompt_logprobs is not None or self.pooling is not None
            check_whole("max_tokens", self.max_tokens, 0 if asks_prompt_only else 1, 2**31 - 1)
        check_whole("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise BadRequest(
                f"min_tokens is {self.min_tokens}, max_tokens is {self.max_tokens}; lower min_tokens",
                param="min_tokens",
            )
        for name, value in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if value is not None:
                check_whole(name, value, 0, MAX_LOGPROBS)
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "use_beam_search"):
            if not isinstance(getattr(self, name), bool):
                raise BadRequest(f"{name} must be true or false", param=name)
        if self.logit_bias or self.stop or self.stop_token_ids or self.allowed_token_ids or self.bad_words:
            self._check_lists()
        if self.logprob_token_ids:
            self._check_logprob_ids()
        self._check_constraints()
        self._check_choice()
        if self.pooling is not None:
            self._check_pooling()

    def _check_lists(self) -> None:
        _count("logit_bias", len(self.logit_bias), MAX_LOGIT_BIAS)
        for token_id, bias in self.logit_bias.items():
            check_whole("logit_bias", token_id, 0, 2**31 - 1)
            _real("logit_bias", bias, -100.0, 100.0)
        _check_texts("stop", "stop string", self.stop, MAX_STOP_STRINGS, MAX_STOP_STRING_BYTES)
        _check_token_ids("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKEN_IDS)
        _check_token_ids("allowed_token_ids", self.allowed_token_ids, MAX_ALLOWED_TOKEN_IDS)
        _check_texts("bad_words", "bad word", self.bad_words, MAX_BAD_WORDS, MAX_BAD_WORD_BYTES)

    def _check_logprob_ids(self) -> None:
        _check_token_ids("logprob_token_ids", self.logprob_token_ids, MAX_LOGPROB_TOKEN_IDS)
        if len(set(self.logprob_token_ids)) < len(self.logprob_token_ids):
            raise BadRequest("logprob_token_ids names a token twice; name each once", param="logprob_token_ids")
        if self.logprobs is None:
            raise BadRequest(
                "logprob_token_ids needs logprobs; set it, or leave the ids out", param="logprob_token_ids"
            )

    def _check_constraints(self) -> None:
        if self.grammar is not None and not isinstance(self.grammar, GrammarSpec):
            raise BadRequest("grammar must be a GrammarSpec", param="grammar")
        if self.grammar is not None and self.min_tokens:
            raise BadRequest(
                f"min_tokens is {self.min_tokens}, but a structured answer ends where its grammar does; leave it out",
                param="min_tokens",
            )
        if self.repetition_detection is not None and not isinstance(self.repetition_detection, RepetitionDetection):
            raise BadRequest("repetition_detection must be a RepetitionDetection", param="repetition_detection")
        if self.thinking_token_budget is not None and not isinstance(self.thinking_token_budget, ThinkingBudget):
            raise BadRequest("thinking_token_budget must be a ThinkingBudget", param="thinking_token_budget")

    def _check_choice(self) -> None:
        """What says how many answers are tried, and which are given out."""
        if self.best_of is not None:
            check_whole("best_of", self.best_of, 1, MAX_N)
            if self.best_of < self.n:
                raise BadRequest(f"best_of is {self.best_of}, n is {self.n}; raise best_of", param="best_of")
        if self.beam_width is not None:
            check_whole("beam_width", self.beam_width, 1, MAX_BEAM_WIDTH)
        _real("length_penalty", self.length_penalty, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY)
        if not (isinstance(self.early_stopping, bool) or self.early_stopping == "never"):
            raise BadRequest('early_stopping must be true, false or "never"', param="early_stopping")
        if self.use_beam_search:
            self._check_beams()
            return
        for name, neutral in (("beam_width", None), ("length_penalty", 1.0), ("early_stopping", False)):
            if getattr(self, name) != neutral:
                raise BadRequest(f"{name} is for beam search; set use_beam_search, or leave it out", param=name)

    def _check_pooling(self) -> None:
        if not isinstance(self.pooling, PoolingParams):
            raise BadRequest("pooling must be PoolingParams", param="pooling")
        if self.max_tokens != 0:
            raise BadRequest("a prompt that is pooled gives no answer; max_tokens must be 0", param="max_tokens")
        for name, neutral in (("n", 1), ("best_of", None), ("prompt_logprobs", None), ("grammar", None)):
            if getattr(self, name) != neutral:
                raise BadRequest(f"a prompt that is pooled gives no answer; leave {name} out", param=name)

    def _check_beams(self) -> None:
        if self.temperature == 1.0:
            object.__setattr__(self, "temperature", 0.0)
        for name, neutral in (
            ("temperature", self.temperature if self.is_greedy else 0.0),
            ("top_p", 1.0),
            ("top_k", -1 if self.top_k == -1 else 0),
            ("min_p", 0.0),
            ("repetition_penalty", 1.0),
            ("presence_penalty", 0.0),
            ("frequency_penalty", 0.0),
            ("logit_bias", {}),
            ("grammar", None),
            ("allowed_token_ids", ()),
            ("bad_words", ()),
            ("logprob_token_ids", ()),
            ("repetition_detection", None),
            ("thinking_token_budget", None),
        ):
            if getattr(self, name) != neutral:
                field = name if self.grammar is None or name != "grammar" else self.grammar.param
                raise BadRequest(f"beam search draws nothing; leave {field} out, or use_beam_search", param=field)
        if self.stop:
            raise BadRequest("beam search does not end at stop strings; send stop_token_ids instead", param="stop")
        if self.max_tokens == 0:
            raise BadRequest("max_tokens is 0, beam search needs at least 1; raise it", param="max_tokens")
        if self.beam_width is None:
            if self.num_samples > MAX_BEAM_WIDTH:
                raise BadRequest(
                    f"{self.num_samples_field} is {self.num_samples}; with beam search it must be at most "
                    f"{MAX_BEAM_WIDTH}",
                    param=self.num_samples_field,
                )
            return
        if self.n > self.beam_width:
            raise BadRequest(f"n is {self.n}, beam_width is {self.beam_width}; lower n or raise beam_width", param="n")
        if self.best_of not in (None, self.beam_width):
            raise BadRequest(
                f"best_of is {self.best_of}, beam_width is {self.beam_width}; they mean the same, send one",
                param="best_of",
            )

    def _keep_as_typed(self) -> None:
        """A lone string would otherwise be read as its letters."""
        for name in ("stop", "stop_token_ids", "allowed_token_ids", "bad_words", "logprob_token_ids"):
            value: Any = getattr(self, name)
            if name in ("stop", "bad_words") and isinstance(value, str):
                value = (value,)
            if value is not None and not isinstance(value, list | tuple):
                raise BadRequest(f"{name} must be a list", param=name)
            object.__setattr__(self, name, tuple(value or ()))
        bias: Any = self.logit_bias
        if bias is not None and not isinstance(bias, Mapping):
            raise BadRequest("logit_bias must map token ids to numbers", param="logit_bias")
        object.__setattr__(self, "logit_bias", {} if bias is None else bias)

    @property
    def num_samples(self) -> int:
        """Sequences that run for one prompt, of which n are given out."""
        return self.beam_width or self.best_of or self.n

    @property
    def num_samples_field(self) -> str:
        """The field that says `num_samples`, for messages."""
        if self.beam_width is not None:
            return "beam_width"
        return "n" if self.num_samples == self.n else "best_of"

    @property
    def num_reported(self) -> int:
        """Of these, the ones whose tokens leave the scheduler: all that draw, only the answers of a beam search."""
        return self.n if self.use_beam_search else self.num_samples

    @property
    def picks_best(self) -> bool:
        """More samples are drawn than given out: nothing can be given out before all have ended."""
        return not self.use_beam_search and self.num_samples > self.n

    @property
    def pools_all(self) -> bool:
        """The hidden state of every prompt token is wanted, and so none may be skipped."""
        return self.pooling is not None and self.pooling.pooling == "mean"

    @property
    def is_constrained(self) -> bool:
        """Something rules tokens out that depends on the answer so far."""
        return (
            self.grammar is not None
            or self.thinking_token_budget is not None
            or bool(self.allowed_token_ids or self.bad_words_token_ids)
        )

    @property
    def num_alternatives(self) -> int:
        """Log-probabilities reported beside each drawn token's own."""
        return len(self.logprob_token_ids) or self.logprobs or 0

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE

    def check_against_model(self, vocab_size: int) -> None:
        """Raises BadRequest when a token id named here is not in the vocabulary."""
        budget = self.thinking_token_budget
        for name, ids in (
            ("logit_bias", self.logit_bias),
            ("stop_token_ids", self.stop_token_ids),
            ("allowed_token_ids", self.allowed_token_ids),
            ("logprob_token_ids", self.logprob_token_ids),
            ("thinking_token_budget", () if budget is None else budget.closing_token_ids),
        ):
            for token_id in ids:
                if token_id >= vocab_size:
                    raise BadRequest(
                        f"{name} names token {token_id}, the vocabulary ends at {vocab_size - 1}",
                        param=name,
                    )


def _real(name: str, value: object, low: float, high: float, *, open_low: bool = False) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise BadRequest(f"{name} must be a number", param=name)
    if not ((low < value if open_low else low <= value) and value <= high):  # nor is NaN
        above = "above" if open_low else "from"
        raise BadRequest(f"{name} is {short_number(value)}; it must be {above} {low:g} to {high:g}", param=name)


def _check_texts(name: str, one: str, texts: tuple[str, ...], max_texts: int, max_bytes: int) -> None:
    _count(name, len(texts), max_texts)
    for text in texts:
        if not isinstance(text, str) or not text:
            raise BadRequest(f"{name} must hold non-empty strings", param=name)
        if len(text.encode("utf-8", "surrogatepass")) > max_bytes:
            raise BadRequest(f"a {one} may have {max_bytes} bytes; shorten it", param=name)


def _check_token_ids(name: str, token_ids: tuple[int, ...], max_ids: int) -> None:
    _count(name, len(token_ids), max_ids)
    for token_id in token_ids:
        check_whole(name, token_id, 0, 2**31 - 1)


def _count(name: str, count: int, limit: int) -> None:
    if count > limit:
        raise BadRequest(f"{name} has {count} entries, the limit is {limit}; send fewer", param=name)
