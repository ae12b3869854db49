"""The fake model's language: printable, whole characters, every token counts."""

from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.fake_model import fake_next_token


def speak(history: list[int], count: int, seed: int = 0, index: int = 0) -> bytes:
    history = list(history)
    begin = len(history)
    for _ in range(count):
        history.append(fake_next_token(history, seed, index))
    return bytes(history[begin:])


@given(st.text(max_size=20), st.integers(0, 2**64 - 1), st.integers(0, 127))
def test_after_any_text_it_speaks_whole_printable_characters(prompt: str, seed: int, index: int) -> None:
    text = speak(list(prompt.encode()), 40, seed, index).decode("utf-8", "ignore")
    assert text.isprintable()
    assert len(text) >= 9


@given(st.lists(st.integers(-1, 259), max_size=20))
def test_any_history_has_a_next_byte(history: list[int]) -> None:
    assert 0 <= fake_next_token(history, 0, 0) < 256


def test_seed_sample_and_every_token_of_the_history_change_what_is_said() -> None:
    prompt = list(b"the quick brown fox jumps over the lazy dog")
    said = speak(prompt, 24)
    assert said == speak(prompt, 24)
    others = [speak(prompt, 24, 1), speak(prompt, 24, 0, 1), speak([ord("T"), *prompt[1:]], 24)]
    assert said not in others
    assert len(set(others)) == 3
