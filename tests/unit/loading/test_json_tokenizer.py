"""Tokenizers from a folder's tokenizer.json: what is taken from it, what is switched off, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import ModelFileError
from octavo.loading.gguf import GGUFFile
from octavo.loading.gguf_tokenizer import tokenizer_from_gguf
from octavo.loading.json_tokenizer import tokenizer_from_folder
from octavo.loading.tokenizer import Tokenizer
from support.gguf_maker import GGUFMaker, tiny_tokens, tiny_vocabulary
from support.hf_folder import byte_level_tokenizer_json, tokenizer_config


def folder(tmp_path: Path, tokenizer: dict[str, Any] | bytes, config: dict[str, Any] | None = None) -> Path:
    content = tokenizer if isinstance(tokenizer, bytes) else json.dumps(tokenizer).encode()
    (tmp_path / "tokenizer.json").write_bytes(content)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config() if config is None else config))
    return tmp_path


def refusal(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        tokenizer_from_folder(path)
    assert str(path) in caught.value.message
    return caught.value.message


def changed(**model: Any) -> dict[str, Any]:
    tokenizer = byte_level_tokenizer_json()
    tokenizer["model"].update(model)
    return tokenizer


def from_gguf(maker: GGUFMaker, tmp_path: Path) -> Tokenizer:
    return tokenizer_from_gguf(GGUFFile.open(maker.write(tmp_path / "a.gguf")))


def test_both_ways_to_one_vocabulary_agree(tmp_path: Path) -> None:
    ours, theirs = (
        tokenizer_from_folder(folder(tmp_path, byte_level_tokenizer_json())),
        from_gguf(tiny_vocabulary(), tmp_path),
    )
    for text in ("hello world", "<|im_start|>a<|im_end|>", "한글 😀", ""):
        for parse_special in (True, False):
            ids = ours.encode(text, parse_special=parse_special)
            assert ids == theirs.encode(text, parse_special=parse_special)
            assert ours.decode(ids, skip_special_tokens=False) == text
    assert ours.special_tokens == theirs.special_tokens
    assert (ours.bos_token_id, ours.eos_token_id, ours.vocab_size) == (1, 2, len(tiny_tokens()))


def test_truncation_and_dropout_of_the_file_are_switched_off(tmp_path: Path) -> None:
    """The file asks for at most 3 tokens, and to drop half of the merges at random."""
    tokenizer = tokenizer_from_folder(folder(tmp_path, byte_level_tokenizer_json()))
    assert {tuple(tokenizer.encode("hello hello hello")) for _ in range(20)} == {
        tuple(tokenizer.encode("hello hello hello"))
    }
    assert len(tokenizer.encode("x" * 50)) == 50


def test_post_processor_adds_special_tokens(tmp_path: Path) -> None:
    post = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }
    tokenizer = tokenizer_from_folder(folder(tmp_path, byte_level_tokenizer_json(post_processor=post)))
    for parse_special in (True, False):
        assert tokenizer.encode("", parse_special=parse_special) == [1]
        assert tokenizer.encode("", parse_special=parse_special, add_special_tokens=False) == []


def test_added_tokens_beyond_the_vocabulary_keep_their_ids_as_plain_text_too(tmp_path: Path) -> None:
    """Special tokens between others once shifted the ids of those that follow."""
    size = len(tiny_tokens())
    extra = [
        {"id": size + i, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": special}
        for i, (content, special) in enumerate([("<|a|>", True), ("<tool>", False), ("<|b|>", True)])
    ]  # fmt: skip
    content = byte_level_tokenizer_json()
    content["added_tokens"] += extra
    tokenizer = tokenizer_from_folder(folder(tmp_path, content))
    assert tokenizer.encode("<|a|><tool><|b|>") == [size, size + 1, size + 2]
    plain = tokenizer.encode("<|a|><tool><|b|>", parse_special=False)
    assert size + 1 in plain
    assert not any(map(tokenizer.is_special, plain))
    assert tokenizer.decode(plain) == "<|a|><tool><|b|>"
    assert tokenizer.vocab_size == size + 3


SENTENCEPIECE = {
    "version": "1.0", "truncation": None, "padding": None, "post_processor": None, "pre_tokenizer": None,
    "added_tokens": [{"id": 0, "content": "<unk>", "single_word": False, "lstrip": False, "rstrip": False,
                      "normalized": False, "special": True}],
    "normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
    "decoder": {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "byte_fallback": True, "fuse_unk": True,
              "vocab": {"<unk>": 0, **{f"<0x{b:02X}>": b + 1 for b in range(256)}, "▁": 257, "h": 258, "i": 259, "hi": 260,
                        "▁hi": 261}, "merges": ["h i", "▁ hi"]},
}  # fmt: skip


def test_sentencepiece_spelling(tmp_path: Path) -> None:
    tokenizer = tokenizer_from_folder(folder(tmp_path, SENTENCEPIECE, {}))
    assert tokenizer.encode("hi hi") == [261, 261]
    for text in ("hi hi", "hi 한 hi", " hi", ""):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.token_bytes(261) == b" hi"
    assert tokenizer.token_bytes(1 + 0xED) == b"\xed"
    assert tokenizer.bos_token_id is None


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [
        (b"", "not valid JSON"),
        (b"[]", "must be an object"),
        (b"{" * 10, "not valid JSON"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"model":{},"model":{}}', "stands twice"),
        ({}, "model type 'None' is not supported"),
        (changed(type="WordPiece"), "'WordPiece' is not supported"),
        (changed(vocab=[]), "vocab must be an object"),
        (changed(vocab={"a": -1}), "'a' has the id -1"),
        (changed(vocab={"a": 2**32}), "has the id 4294967296"),
        (changed(vocab={"a": "x"}), "has the id x"),
        (changed(merges=["h e", "q q q"]), "merges[1] does not merge"),
        (changed(merges=[["h", "zz"]]), "merges[0] does not merge"),
        (changed(merges=[5]), "merges[0]"),
        (changed(continuing_subword_prefix="##"), "continuing_subword_prefix"),
        (byte_level_tokenizer_json(decoder=None), "decoder none is not supported"),
        (byte_level_tokenizer_json(decoder={"type": "WordPiece"}), "decoder WordPiece is not supported"),
        (byte_level_tokenizer_json(pre_tokenizer={"type": "Evil"}), "cannot be built"),
        (byte_level_tokenizer_json(added_tokens=5), "cannot be built"),
    ],
)
def test_hostile_files_are_refused(tokenizer: dict[str, Any] | bytes, expected: str, tmp_path: Path) -> None:
    assert expected in refusal(folder(tmp_path, tokenizer))


def test_a_folder_without_tokenizer_json_is_told_what_is_missing(tmp_path: Path) -> None:
    assert "there is no tokenizer.json" in refusal(tmp_path)


def test_a_custom_class_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("import pathlib\npathlib.Path('PWNED').touch()\n")
    config = tokenizer_config(tokenizer_class="Evil", auto_map={"AutoTokenizer": ["evil.Evil", None]})
    tokenizer_from_folder(folder(tmp_path, byte_level_tokenizer_json(), config)).encode("hello")
    assert not Path("PWNED").exists()
    assert not (tmp_path / "PWNED").exists()
