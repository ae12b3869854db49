"""Log-probabilities in the three shapes clients know: chat's, completions', and vLLM's prompt_logprobs.

Refuses numbers JSON has no word for: what is below FLOOR (a masked token) is FLOOR. Invariants: a token's own logprob
and its entry among the alternatives are the same float; two tokens of one position never share a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.outputs import TokenLogprobs
from octavo.server.protocol import TokenizerLike

FLOOR = -9999.0


class TokenNames:
    """How tokens are written: their text, or token_id:N where the client asked for ids."""

    def __init__(self, tokenizer: TokenizerLike, *, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def text(self, token_id: int) -> str:
        """For chat, which sends the bytes beside it: part of a character shows as U+FFFD."""
        return f"token_id:{token_id}" if self._as_ids else self._tokenizer.token_text(token_id)

    def key(self, token_id: int) -> str:
        """For completions, where it is a key: part of a character is written bytes:\\xNN, so that keys differ."""
        if self._as_ids:
            return f"token_id:{token_id}"
        content = self._tokenizer.token_bytes(token_id)
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)

    def bytes(self, token_id: int) -> list[int]:
        return list(self._tokenizer.token_bytes(token_id))

    def num_chars(self, token_id: int, *, skip_special: bool) -> int:
        """Characters that begin in this token: continuation bytes belong to the token before."""
        if skip_special and self._tokenizer.is_special(token_id):
            return 0
        return sum(byte & 0xC0 != 0x80 for byte in self._tokenizer.token_bytes(token_id))


def finite(logprob: float) -> float:
    return logprob if logprob > FLOOR else FLOOR


def chat_content(entries: Sequence[TokenLogprobs], names: TokenNames) -> list[dict[str, Any]]:
    """choices[].logprobs.content"""
    return [
        _chat_entry(entry.token_id, entry.logprob, names)
        | {"top_logprobs": [_chat_entry(token_id, logprob, names) for token_id, logprob in entry.top]}
        for entry in entries
    ]


def _chat_entry(token_id: int, logprob: float, names: TokenNames) -> dict[str, Any]:
    return {"token": names.text(token_id), "logprob": finite(logprob), "bytes": names.bytes(token_id)}


class CompletionLogprobs:
    """choices[].logprobs of one completion, piece by piece: keeps the place in the text between pieces."""

    def __init__(self, names: TokenNames, num_top: int, *, skip_special: bool) -> None:
        self._names = names
        self._num_top = num_top
        self._skip_special = skip_special
        self._offset = 0  # characters before the next token

    def prompt(self, token_ids: Sequence[int], entries: Sequence[TokenLogprobs | None]) -> dict[str, Any]:
        """The echoed prompt: the first token has no context, so its log-probability is null."""
        return self._piece(token_ids, entries, skip_special=False, num_top=self._num_top)

    def piece(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
        return self._piece([entry.token_id for entry in entries], entries, skip_special=self._skip_special)

    def _piece(
        self,
        token_ids: Sequence[int],
        entries: Sequence[TokenLogprobs | None],
        *,
        skip_special: bool,
        num_top: int | None = None,
    ) -> dict[str, Any]:
        offsets: list[int] = []
        for token_id in token_ids:
            offsets.append(self._offset)
            self._offset += self._names.num_chars(token_id, skip_special=skip_special)
        return {
            "tokens": [self._names.key(token_id) for token_id in token_ids],
            "token_logprobs": [None if entry is None else finite(entry.logprob) for entry in entries],
            "top_logprobs": [None if entry is None else self._top(entry, num_top) for entry in entries],
            "text_offset": offsets,
        }

    def _top(self, entry: TokenLogprobs, num_top: int | None) -> dict[str, float]:
        """`num_top`: of a prompt, for which more may have been asked by another name."""
        top: dict[str, float] = {}
        for token_id, logprob in entry.top[:num_top]:
            top.setdefault(self._names.key(token_id), finite(logprob))  # best first: of two equal spellings, the better
        top[self._names.key(entry.token_id)] = finite(entry.logprob)
        return top


def joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Two pieces of one completion's log-probabilities as one."""
    return {name: first[name] + second[name] for name in first}


def prompt_logprobs(entries: Sequence[TokenLogprobs | None], names: TokenNames) -> list[dict[str, Any] | None]:
    """vLLM's prompt_logprobs: for each position an object keyed by token id, null for the first."""
    return [None if entry is None else _by_id(entry, names) for entry in entries]


def _by_id(entry: TokenLogprobs, names: TokenNames) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for rank, (token_id, logprob) in enumerate(entry.top, 1):
        made[str(token_id)] = {"logprob": finite(logprob), "rank": rank, "decoded_token": names.text(token_id)}
    own = str(entry.token_id)
    if own not in made:
        made[own] = {"logprob": finite(entry.logprob), "rank": None, "decoded_token": names.text(entry.token_id)}
    return made
