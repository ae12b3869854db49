"""Rebuilds a byte-level BPE tokenizer from the vocabulary a GGUF file carries. Refuses every other kind of vocabulary.

Checks before the library sees anything: token ids and types agree in number, no token stands twice, every merge is of
tokens that exist, special ids lie inside the vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from octavo.errors import ModelFileError
from octavo.loading.gguf import GGUFFile, MetadataValue, printable
from octavo.loading.pre_tokenizers import PreTokenizer, pre_tokenizer_named
from octavo.loading.tokenizer import MAX_VOCAB_SIZE, Tokenizer, checked_by_library, with_specials_as_text

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6  # the format's token types
_VERBATIM: Final = (_UNKNOWN, _USER_DEFINED, _UNUSED)  # spelled as their own text

log = logging.getLogger(__name__)


def tokenizer_from_gguf(file: GGUFFile) -> Tokenizer:
    """Raises ModelFileError naming the file and the key; for merges that are wrong, when first asked to encode."""
    metadata = file.metadata
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ModelFileError(
            f"{file.path}: key tokenizer.ggml.model: {printable(str(kind))!r} is not supported; supported is 'gpt2' "
            "(byte-level BPE)"
        )
    tokens = _strings(file, "tokenizer.ggml.tokens")
    if not 0 < len(tokens) <= MAX_VOCAB_SIZE:
        raise ModelFileError(f"{file.path}: {len(tokens)} tokens; from 1 to {MAX_VOCAB_SIZE} can be read")
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        twice = next(token for token_id, token in enumerate(tokens) if ids[token] != token_id)
        raise ModelFileError(f"{file.path}: key tokenizer.ggml.tokens: {printable(twice)!r} stands twice")
    types = _token_types(file, len(tokens))
    pre = _pre_tokenizer(file)
    bos, eos = token_id_key(file, "bos"), token_id_key(file, "eos")

    def build() -> tuple[Any, Any]:
        library = checked_by_library(lambda: _library(ids, _merges(file, ids), pre, tokens, types), f"{file.path}")
        plain = with_specials_as_text(library)
        assert plain is not None, "every added token of a GGUF vocabulary has its id in the vocabulary"
        return library, plain

    return Tokenizer(
        build,
        tokens,
        spelling="byte_level",
        special_token_ids=[i for i, token_type in enumerate(types) if token_type == _CONTROL],
        verbatim_token_ids=[i for i, token_type in enumerate(types) if token_type in _VERBATIM],
        bos_token_id=bos,
        eos_token_id=eos,
        prefix=(bos,) if bos is not None and _flag(metadata, "add_bos_token", pre.add_bos) else (),
        suffix=(eos,) if eos is not None and _flag(metadata, "add_eos_token", False) else (),
    )


def token_id_key(file: GGUFFile, name: str) -> int | None:
    """`tokenizer.ggml.{name}_token_id`, checked against the vocabulary; None when the file does not say."""
    key = f"tokenizer.ggml.{name}_token_id"
    value = file.metadata.get(key)
    if value is None:
        return None
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    count = len(tokens) if isinstance(tokens, list) else 0
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < count:
        raise ModelFileError(f"{file.path}: key {key}: {value!r} is no id of the {count} tokens")
    return value


def special_token_texts(file: GGUFFile) -> tuple[str, str]:
    """How the begin and the end token are spelled; "" where the file names none."""
    tokens = _strings(file, "tokenizer.ggml.tokens")
    bos, eos = token_id_key(file, "bos"), token_id_key(file, "eos")
    return "" if bos is None else tokens[bos], "" if eos is None else tokens[eos]


def _library(
    ids: dict[str, int], merges: list[tuple[str, str]], pre: PreTokenizer, tokens: list[str], types: list[int]
) -> Any:
    from tokenizers import AddedToken, decoders, models, normalizers
    from tokenizers import Tokenizer as LibraryTokenizer

    library = LibraryTokenizer(models.BPE(ids, merges, ignore_merges=pre.ignore_merges))
    if pre.nfc:
        library.normalizer = normalizers.NFC()
    library.pre_tokenizer = pre.library_pre_tokenizer()
    library.decoder = decoders.ByteLevel()
    special = [AddedToken(tokens[i], special=True, normalized=False) for i, t in enumerate(types) if t == _CONTROL]
    library.add_special_tokens([token for token in special if token.content])
    defined = [AddedToken(tokens[i], normalized=False) for i, t in enumerate(types) if t == _USER_DEFINED]
    library.add_tokens([token for token in defined if token.content])
    return library


def _merges(file: GGUFFile, ids: dict[str, int]) -> list[tuple[str, str]]:
    lines = _strings(file, "tokenizer.ggml.merges")
    merges = [(left, right) for left, _, right in [line.partition(" ") for line in lines]]
    is_sound = [left in ids and right in ids and left + right in ids for left, right in merges]
    if not all(is_sound):
        wrong = is_sound.index(False)
        raise ModelFileError(
            f"{file.path}: key tokenizer.ggml.merges, element {wrong}: {printable(lines[wrong])!r} does not merge two "
            "tokens of the vocabulary into a third"
        )
    return merges


def _token_types(file: GGUFFile, count: int) -> list[int]:
    """One a token. A file without them has its begin and end tokens as the only special ones."""
    key = "tokenizer.ggml.token_type"
    value = file.metadata.get(key)
    if value is None:
        types = [_NORMAL] * count
        for token_id in (token_id_key(file, "bos"), token_id_key(file, "eos")):
            if token_id is not None:
                types[token_id] = _CONTROL
        return types
    if file.value_types[key] not in ("ARRAY[INT32]", "ARRAY[UINT32]"):
        raise ModelFileError(f"{file.path}: key {key}: {file.value_types[key]}; it must be ARRAY[INT32]")
    types = [each for each in value if isinstance(each, int)] if isinstance(value, list) else []
    if len(types) != count:
        raise ModelFileError(f"{file.path}: key {key}: {len(types)} types for {count} tokens")
    wrong = set(types) - {_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE}
    if wrong:
        raise ModelFileError(f"{file.path}: key {key}: {min(wrong)} is no token type; they are 1 to 6")
    scores = file.value_types.get("tokenizer.ggml.scores", "ARRAY[FLOAT32]")
    if scores != "ARRAY[FLOAT32]":
        raise ModelFileError(f"{file.path}: key tokenizer.ggml.scores: {scores}; it must be ARRAY[FLOAT32]")
    return types


def _pre_tokenizer(file: GGUFFile) -> PreTokenizer:
    name = file.metadata.get("tokenizer.ggml.pre")
    if name is None:
        log.warning("%s: names no pre-tokenizer (tokenizer.ggml.pre); using 'default'", file.path)
        name = "default"
    return pre_tokenizer_named(str(name), f"{file.path}: key tokenizer.ggml.pre")


def _strings(file: GGUFFile, key: str) -> list[str]:
    value = file.metadata.get(key)
    if value is None:
        raise ModelFileError(f"{file.path}: the key {key} is missing")
    if not isinstance(value, list) or file.value_types[key] != "ARRAY[STRING]":
        raise ModelFileError(f"{file.path}: key {key}: {file.value_types[key]}; it must be ARRAY[STRING]")
    return value  # type: ignore[return-value]  # the value type says so


def _flag(metadata: Mapping[str, MetadataValue], name: str, default: bool) -> bool:
    value = metadata.get(f"tokenizer.ggml.{name}", default)
    return value if isinstance(value, bool) else default
