"""Builds a tokenizer from a Hugging Face folder's tokenizer.json. Runs no code of the folder, ignores custom classes.

The library decides how text is cut and merged; what it is given is bounded and checked first. Truncation, padding and
dropout that the file may ask for are switched off: a server must neither shorten a prompt nor draw lots over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.errors import ModelFileError
from octavo.loading.byte_level import SPACE_MARK, Spelling
from octavo.loading.json_file import (
    MAX_TOKENIZER_BYTES,
    MAX_TOKENIZER_VALUES,
    parse_json_object,
    read_bounded,
    read_json_object,
)
from octavo.loading.tokenizer import MAX_VOCAB_SIZE, Tokenizer, checked_by_library, with_specials_as_text


def tokenizer_from_folder(folder: Path) -> Tokenizer:
    """Reads tokenizer.json, and tokenizer_config.json for the names of the begin and end tokens."""
    path = folder / "tokenizer.json"
    if not path.exists():
        raise ModelFileError(
            f"{folder}: there is no tokenizer.json; vocabularies in other files are not read, convert them to it"
        )
    text = read_bounded(path, MAX_TOKENIZER_BYTES)
    parsed = parse_json_object(text, f"{path}", max_values=MAX_TOKENIZER_VALUES)
    _check_model(parsed.get("model"), path)
    spelling, strip = _spelling(parsed, path)
    library = checked_by_library(lambda: _library(text), f"{path}")
    plain = with_specials_as_text(library)
    if plain is None:  # ids of added tokens with holes between them: read the file once more
        plain = _library(text)
        plain.encode_special_tokens = True
    tokens = _tokens(library, path)
    added = library.get_added_tokens_decoder()
    names = special_token_names(folder)
    return Tokenizer(
        lambda: (library, plain),
        tokens,
        spelling=spelling,
        special_token_ids=[token_id for token_id, token in added.items() if token.special],
        verbatim_token_ids=list(added),
        bos_token_id=_id_of(library, names.get("bos_token")),
        eos_token_id=_id_of(library, names.get("eos_token")),
        strip_leading_space=strip,
    )


def special_token_names(folder: Path) -> dict[str, str]:
    """bos_token, eos_token ... as tokenizer_config.json or special_tokens_map.json spell them."""
    names: dict[str, str] = {}
    for file_name in ("special_tokens_map.json", "tokenizer_config.json"):  # the later wins
        if (folder / file_name).exists():
            for key, value in read_json_object(folder / file_name).items():
                content = value.get("content") if isinstance(value, dict) else value
                if key.endswith("_token") and isinstance(content, str):
                    names[key] = content
    return names


def _library(text: bytes) -> Any:
    from tokenizers import Tokenizer as LibraryTokenizer

    library = LibraryTokenizer.from_buffer(text)
    library.no_truncation()
    library.no_padding()
    if getattr(library.model, "dropout", None) is not None:
        library.model.dropout = None
    return library


def _check_model(model: Any, path: Path) -> None:
    kind = model.get("type", "BPE" if "merges" in model else None) if isinstance(model, dict) else None
    if kind not in ("BPE", "Unigram"):
        raise ModelFileError(f"{path}: model type {str(kind)[:40]!r} is not supported; supported are BPE, Unigram")
    if kind == "Unigram":
        return
    vocab, merges = model.get("vocab"), model.get("merges")
    if not isinstance(vocab, dict) or not isinstance(merges, list):
        raise ModelFileError(f"{path}: model: vocab must be an object and merges a list")
    for token, token_id in vocab.items():
        if not isinstance(token_id, int) or isinstance(token_id, bool) or not 0 <= token_id < MAX_VOCAB_SIZE:
            raise ModelFileError(f"{path}: model.vocab: {token[:40]!r} has the id {str(token_id)[:20]}")
    if model.get("continuing_subword_prefix"):
        raise ModelFileError(f"{path}: model.continuing_subword_prefix is not supported")
    for index, merge in enumerate(merges):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not (
            isinstance(pair, list)
            and len(pair) == 2
            and all(isinstance(part, str) and part in vocab for part in pair)
            and pair[0] + pair[1] in vocab
        ):
            raise ModelFileError(f"{path}: model.merges[{index}] does not merge two tokens of the vocabulary")


def _spelling(parsed: Mapping[str, Any], path: Path) -> tuple[Spelling, bool]:
    """How tokens spell bytes, told by the decoder, and whether decoding drops the space that encoding put first."""
    steps = _flattened(parsed.get("decoder"))
    kinds = [step.get("type") for step in steps]
    if "ByteLevel" in kinds:
        return "byte_level", False
    strip = any(step.get("type") == "Strip" and step.get("start") for step in steps)
    for step in steps:
        if step.get("type") == "Metaspace" and step.get("replacement", SPACE_MARK) == SPACE_MARK:
            return "sentencepiece", step.get("prepend_scheme", "always") != "never"
    if "ByteFallback" in kinds:
        return "sentencepiece", strip
    shown = ", ".join(str(kind)[:40] for kind in kinds[:8]) or "none"
    raise ModelFileError(
        f"{path}: decoder {shown} is not supported; supported are ByteLevel, Metaspace, and sequences with ByteFallback"
    )


def _flattened(decoder: Any) -> list[Mapping[str, Any]]:
    if not isinstance(decoder, dict):
        return []
    if decoder.get("type") == "Sequence" and isinstance(decoder.get("decoders"), list):
        return [step for step in decoder["decoders"] if isinstance(step, dict)]
    return [decoder]


def _tokens(library: Any, path: Path) -> list[str | None]:
    ids: dict[str, int] = library.get_vocab(with_added_tokens=True)
    size = max(ids.values(), default=-1) + 1
    if not 0 < size <= MAX_VOCAB_SIZE:
        raise ModelFileError(f"{path}: token ids up to {size - 1}; from 1 to {MAX_VOCAB_SIZE} tokens can be read")
    tokens: list[str | None] = [None] * size
    for token, token_id in ids.items():
        tokens[token_id] = token
    return tokens


def _id_of(library: Any, token: str | None) -> int | None:
    if token is None:
        return None
    token_id: int | None = library.token_to_id(token)
    return token_id
