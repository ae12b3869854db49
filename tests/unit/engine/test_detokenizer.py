"""The joined deltas are the text, whatever the tokens cut."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.detokenizer import Detokenizer
from octavo.loading.fake_tokenizer import FakeTokenizer

TOKENIZER = FakeTokenizer()


class PieceTokenizer:
    """Any bytes as a token."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces
        self.vocab_size = len(pieces)

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id]

    def is_special(self, token_id: int) -> bool:
        return False


def read(token_ids: list[int], skip_special_tokens: bool = True) -> list[str]:
    detokenizer = Detokenizer(TOKENIZER, skip_special_tokens=skip_special_tokens)
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.flush()]


@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=60), st.booleans())
def test_deltas_join_to_what_decode_says_for_any_tokens(token_ids: list[int], skip: bool) -> None:
    assert "".join(read(token_ids, skip)) == TOKENIZER.decode(token_ids, skip_special_tokens=skip)


@given(st.text(max_size=40))
def test_valid_text_never_shows_half_a_character(text: str) -> None:
    deltas = read(TOKENIZER.encode(text, parse_special=False))
    assert "".join(deltas) == text
    assert all(delta in text for delta in deltas)


def test_korean_and_emoji_appear_with_their_last_byte() -> None:
    deltas = read(list("글🙂".encode()))
    assert deltas == ["", "", "글", "", "", "", "🙂", ""]


def test_an_unfinished_character_becomes_one_replacement_at_the_end() -> None:
    assert read(list("é🙂".encode())[:-1]) == ["", "é", "", "", "", "\ufffd"]


def test_an_invalid_byte_is_replaced_as_soon_as_it_is_known_to_be_invalid() -> None:
    assert read([0xFF, ord("a"), 0xC3, ord("b")]) == ["\ufffd", "a", "", "\ufffdb", ""]


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=12))
def test_the_text_does_not_depend_on_how_bytes_are_cut_into_tokens(data: bytes, cuts: list[int]) -> None:
    places = sorted({0, len(data), *(cut for cut in cuts if cut <= len(data))})
    pieces = [data[begin:end] for begin, end in pairwise(places)]
    detokenizer = Detokenizer(PieceTokenizer(pieces))
    text = "".join(detokenizer.push(i) for i in range(len(pieces))) + detokenizer.flush()
    assert text == data.decode("utf-8", "replace")


def test_special_tokens_show_only_where_asked() -> None:
    ids = TOKENIZER.encode("a<|im_end|>b")
    assert "".join(read(ids)) == "ab"
    assert "".join(read(ids, skip_special_tokens=False)) == "a<|im_end|>b"
