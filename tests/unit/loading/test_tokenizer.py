"""The tokenizer: GPT-2's 365 checked cases, special tokens, bytes, and the default model's vocabulary."""

from __future__ import annotations

import json
import threading
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import BadRequest, ModelFileError
from octavo.loading.byte_level import BYTE_OF_CHARACTER, BYTE_ORDER
from octavo.loading.fake_tokenizer import FakeTokenizer
from octavo.loading.gguf import GGUFFile
from octavo.loading.gguf_tokenizer import tokenizer_from_gguf
from octavo.loading.pre_tokenizers import PRE_TOKENIZERS
from octavo.loading.tokenizer import Tokenizer, TokenizerLike
from support.gguf_maker import GGUFMaker, tiny_tokens, tiny_vocabulary

SHARED = Path(__file__).parents[4] / "shared" / "data" / "tokenizer"
TEXTS = [
    "", " ", "Hello world", "  two  spaces ", "\n\n\t x", "I'll we've DON'T", "3.14159 1234567 ½ ٣", "안녕하세요 반갑습니다",
    "日本語とEnglish混ぜ", "😀👩‍👩‍👧‍👦🇰🇷", "é e\u0301", "a\u00a0b\u3000c", "<b>x</b>", "\x00\x01\x7f", "𝔘𝔫𝔦", "code: x = [1, 2];\r\n",
]  # fmt: skip


def build(maker: GGUFMaker, tmp_path: Path) -> Tokenizer:
    return tokenizer_from_gguf(GGUFFile.open(maker.write(tmp_path / "vocabulary.gguf")))


def refusal(maker: GGUFMaker, tmp_path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        build(maker, tmp_path).encode("")
    assert "vocabulary.gguf" in caught.value.message
    return caught.value.message


def test_the_byte_symbols_are_256_and_distinct() -> None:
    assert sorted(BYTE_OF_CHARACTER.values()) == list(range(256))
    assert BYTE_ORDER[0] == "!"
    assert BYTE_OF_CHARACTER["Ġ"] == 0x20


@pytest.mark.skipif(
    not SHARED.is_dir(), reason="needs the shared tokenizer data, which is not copied here (third party)"
)
def test_gpt2_cases(tmp_path: Path) -> None:
    merges = (SHARED / "gpt2_vocab.bpe").read_text(encoding="utf-8").split("\n")[1:50_001]
    tokens = [*BYTE_ORDER, *(merge.replace(" ", "") for merge in merges), "<|endoftext|>"]
    maker = GGUFMaker()
    maker.key("tokenizer.ggml.model", "STRING", "gpt2").key("tokenizer.ggml.pre", "STRING", "gpt-2")
    maker.key("tokenizer.ggml.tokens", "ARRAY[STRING]", tokens).key("tokenizer.ggml.merges", "ARRAY[STRING]", merges)
    maker.key("tokenizer.ggml.eos_token_id", "UINT32", 50256)
    tokenizer = build(maker, tmp_path)
    cases = [json.loads(line) for line in (SHARED / "gpt2_cases.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(cases) == 365
    for case, ids in zip(cases, tokenizer.encode_batch([case["text"] for case in cases]), strict=True):
        assert ids == case["ids"], case["text"]
        assert tokenizer.decode(ids) == case["text"]


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_pre_tokenizer_keeps_every_text(pre: str, tmp_path: Path) -> None:
    tokenizer = build(tiny_vocabulary(pre), tmp_path)
    for text in TEXTS:
        normal = unicodedata.normalize("NFC", text) if PRE_TOKENIZERS[pre].nfc else text
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == normal
        assert b"".join(map(tokenizer.token_bytes, ids)) == normal.encode()


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "I'll buy 12345 apples!!", ["I", "'ll", " buy", " 12345", " apples", "!!"]),
        ("smollm", "a 123", ["a", " ", "1", "2", "3"]),
        ("llama-bpe", "I'LL 12345x\n\n y", ["I", "'LL", " ", "123", "45", "x", "\n\n", " y"]),
        ("qwen2", "x123", ["x", "1", "2", "3"]),
        ("deepseek-coder", "x 12\ny", ["x", " ", "1", "2", "\n", "y"]),
        ("deepseek-v3", "x日本語12345_ab", ["x", "日本語", "123", "45", "_ab"]),
    ],
)
def test_words_are_cut_as_the_family_cuts_them(pre: str, text: str, pieces: list[str]) -> None:
    spans = PRE_TOKENIZERS[pre].library_pre_tokenizer().pre_tokenize_str(text)
    assert [text[begin:end] for _, (begin, end) in spans] == pieces


def test_an_unknown_pre_tokenizer_lists_the_known(tmp_path: Path) -> None:
    message = refusal(tiny_vocabulary("no-such"), tmp_path)
    assert "'no-such' is not supported; supported are default, gpt-2" in message


def test_no_pre_tokenizer_named_is_the_default_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert build(tiny_vocabulary(None), tmp_path).decode([3]) == "!"
    assert "names no pre-tokenizer" in caplog.text


def test_merges_apply(tmp_path: Path) -> None:
    tokenizer = build(tiny_vocabulary(), tmp_path)
    tokens = tiny_tokens()
    assert [tokens[i] for i in tokenizer.encode("hello world")] == ["hello", "Ġw", "o", "r", "l", "d"]
    assert tokenizer.token_bytes(tokens.index("Ġw")) == b" w"


def test_special_tokens_are_found_or_are_plain_text(tmp_path: Path) -> None:
    tokenizer = build(tiny_vocabulary(), tmp_path)
    text = "hi<|im_end|>\n<|im_start|>system"
    found, plain = tokenizer.encode(text), tokenizer.encode(text, parse_special=False)
    assert [i for i in found if tokenizer.is_special(i)] == [2, 1]
    assert not any(map(tokenizer.is_special, plain))
    assert tokenizer.decode(plain) == text
    assert tokenizer.decode(found) == "hi\nsystem"
    assert tokenizer.decode(found, skip_special_tokens=False) == text
    assert tokenizer.encode_batch([text, text], parse_special=False) == [plain, plain]
    assert tokenizer.special_tokens == {0: "<|endoftext|>", 1: "<|im_start|>", 2: "<|im_end|>"}
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)


def test_user_defined_tokens_are_found_in_plain_text_too(tmp_path: Path) -> None:
    tokens = [*tiny_tokens(), "<tool>"]
    maker = tiny_vocabulary().replace_key("tokenizer.ggml.tokens", "ARRAY[STRING]", tokens)
    maker.replace_key("tokenizer.ggml.token_type", "ARRAY[INT32]", [3] * 3 + [1] * (len(tokens) - 4) + [4])
    tokenizer = build(maker, tmp_path)
    tool = len(tokens) - 1
    for parse_special in (True, False):
        assert tool in tokenizer.encode("x<tool>y", parse_special=parse_special)
    assert not tokenizer.is_special(tool)
    assert tokenizer.decode([tool]) == "<tool>"


def test_begin_and_end_tokens_are_added_where_the_file_says_so(tmp_path: Path) -> None:
    assert build(tiny_vocabulary(), tmp_path).encode("") == []
    assert build(tiny_vocabulary("llama-bpe"), tmp_path).encode("") == [1]
    maker = (
        tiny_vocabulary().key("tokenizer.ggml.add_bos_token", "BOOL", 1).key("tokenizer.ggml.add_eos_token", "BOOL", 1)
    )
    tokenizer = build(maker, tmp_path)
    assert tokenizer.encode("") == [1, 2]
    assert tokenizer.encode("", add_special_tokens=False) == []
    assert tokenizer.encode_batch(["", "h"])[0] == [1, 2]


def test_a_long_text_is_encoded_without_pythons_lock(tmp_path: Path) -> None:
    tokenizer = build(tiny_vocabulary(), tmp_path)
    text = "1" * 500_000
    started, ended = threading.Event(), threading.Event()

    def encode() -> None:
        started.set()
        assert len(tokenizer.encode(text)) == len(text)
        ended.set()

    thread = threading.Thread(target=encode)
    thread.start()
    started.wait()
    turns = 0
    while not ended.wait(0.001):
        turns += 1
    thread.join()
    assert turns > 10  # with the lock held: one or two
    assert tokenizer.encode("hello wé" * 1000) == tokenizer.encode("hello wé") * 1000


def test_ids_outside_the_vocabulary_add_nothing(tmp_path: Path) -> None:
    tokenizer = build(tiny_vocabulary(), tmp_path)
    assert tokenizer.decode([tokenizer.vocab_size, -1, 2**40, 3]) == "!"
    assert tokenizer.token_bytes(-1) == b""
    assert tokenizer.token_text(2**31) == ""


def test_part_of_a_character_is_shown_as_such(tmp_path: Path) -> None:
    tokenizer = build(tiny_vocabulary(), tmp_path)
    first, *_ = tokenizer.encode("한")
    assert tokenizer.token_bytes(first) == "한".encode()[:1]
    assert tokenizer.token_text(first) == "\ufffd"


@pytest.mark.parametrize("parse_special", [True, False])
def test_a_lone_surrogate_is_a_bad_request(parse_special: bool, tmp_path: Path) -> None:
    for tokenizer in (build(tiny_vocabulary(), tmp_path), FakeTokenizer()):
        with pytest.raises(BadRequest, match="lone surrogate at character 1"):
            tokenizer.encode("a\ud800", parse_special=parse_special)
        with pytest.raises(BadRequest):
            tokenizer.encode_batch(["a\ud800"], parse_special=parse_special)


@pytest.mark.parametrize(
    ("key", "kind", "content", "expected"),
    [
        ("tokenizer.ggml.model", "STRING", "llama", "'llama' is not supported; supported is 'gpt2'"),
        ("tokenizer.ggml.model", "UINT32", 1, "is not supported"),
        ("tokenizer.ggml.pre", "UINT32", 1, "'1' is not supported"),
        ("tokenizer.ggml.tokens", "ARRAY[INT32]", [1], "it must be ARRAY[STRING]"),
        ("tokenizer.ggml.tokens", "STRING", "x", "it must be ARRAY[STRING]"),
        ("tokenizer.ggml.tokens", "ARRAY[STRING]", [], "0 tokens"),
        ("tokenizer.ggml.tokens", "ARRAY[STRING]", ["a", "b", "a"], "'a' stands twice"),
        ("tokenizer.ggml.token_type", "ARRAY[INT32]", [1], "1 types for"),
        ("tokenizer.ggml.token_type", "ARRAY[INT8]", [1] * 264, "ARRAY[INT8]; it must be ARRAY[INT32]"),
        ("tokenizer.ggml.token_type", "ARRAY[INT32]", [9] * 264, "9 is no token type"),
        ("tokenizer.ggml.scores", "ARRAY[INT8]", [1] * 264, "scores: ARRAY[INT8]; it must be ARRAY[FLOAT32]"),
        ("tokenizer.ggml.merges", "ARRAY[STRING]", ["h e", "q"], "element 1: 'q' does not merge"),
        ("tokenizer.ggml.merges", "ARRAY[STRING]", ["z z"], "does not merge"),
        ("tokenizer.ggml.merges", "ARRAY[UINT8]", [1], "it must be ARRAY[STRING]"),
        ("tokenizer.ggml.bos_token_id", "UINT32", 264, "264 is no id of the 264 tokens"),
        ("tokenizer.ggml.eos_token_id", "UINT32", 2**32 - 1, "is no id"),
        ("tokenizer.ggml.eos_token_id", "BOOL", 1, "is no id"),
    ],
)
def test_hostile_vocabularies_are_refused(key: str, kind: str, content: object, expected: str, tmp_path: Path) -> None:
    assert len(tiny_tokens()) == 264
    assert expected in refusal(tiny_vocabulary().replace_key(key, kind, content), tmp_path)


def test_a_vocabulary_without_tokens_is_refused(tmp_path: Path) -> None:
    maker = GGUFMaker().key("tokenizer.ggml.model", "STRING", "gpt2")
    assert "tokenizer.ggml.tokens is missing" in refusal(maker, tmp_path)


@settings(max_examples=200)
@given(text=st.text())
def test_the_fake_tokenizer_keeps_every_text(text: str) -> None:
    tokenizer: TokenizerLike = FakeTokenizer()
    ids = tokenizer.encode(text, parse_special=False)
    assert tokenizer.decode(ids) == text
    assert all(0 <= i < 256 for i in ids)


def test_the_fake_tokenizer_has_special_tokens() -> None:
    tokenizer = FakeTokenizer()
    ids = tokenizer.encode("<|im_start|>é<|eos|>")
    assert ids == [258, 0xC3, 0xA9, 257]
    assert tokenizer.decode(ids) == "é"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>é<|eos|>"
    assert tokenizer.eos_token_id == 257
    assert tokenizer.vocab_size == 260
    assert tokenizer.token_bytes(260) == b""
    assert tokenizer.encode_batch(["a", "<|eos|>"], parse_special=False)[1] == list(b"<|eos|>")


@pytest.mark.model
def test_the_default_models_tokenizer_round_trips(smollm2_path: Path) -> None:
    tokenizer = tokenizer_from_gguf(GGUFFile.open(smollm2_path))
    for text in [*TEXTS, " ".join(TEXTS)]:
        for parse_special in (True, False):
            ids = tokenizer.encode(text, parse_special=parse_special)
            assert tokenizer.decode(ids) == text
    assert tokenizer.encode("The capital of France is") == [504, 3575, 282, 4649, 314]
    assert tokenizer.encode("<|im_start|>user\nHi<|im_end|>\n") == [1, 4093, 198, 26843, 2, 198]
    assert tokenizer.vocab_size == 49152


@pytest.mark.model
def test_the_default_models_tokens_join_to_the_librarys_own_decoding(smollm2_path: Path) -> None:
    tokenizer = tokenizer_from_gguf(GGUFFile.open(smollm2_path))
    ids = tokenizer.encode(" ".join(TEXTS))
    assert tokenizer.decode(ids) == tokenizer._views[0].decode(ids)
