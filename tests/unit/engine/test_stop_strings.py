"""Stop strings: where an answer ends does not depend on how its text came in."""

from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.stop_strings import StopFilter, prepare_stop_strings

SMALL = st.text("abc", min_size=1, max_size=4)


def run(pieces: list[str], stop: list[str], include: bool = False) -> tuple[list[str], str | None]:
    """(what was shown by each push and the flush, the stop string)"""
    stop_filter = StopFilter(prepare_stop_strings(stop), include_in_output=include)
    shown = []
    for piece in pieces:
        released = stop_filter.push(piece)
        shown.append(released.text)
        if released.stop_string is not None:
            return shown, released.stop_string
    return [*shown, stop_filter.flush()], None


def by_definition(text: str, stop: list[str], include: bool) -> tuple[str, str | None]:
    """The match that ends first, the longest of those; by trying every end."""
    for end in range(1, len(text) + 1):
        matches = [each for each in stop if text[:end].endswith(each)]
        if matches:
            best = max(matches, key=len)
            return text[: end if include else end - len(best)], best
    return text, None


@given(st.lists(st.text("abc", max_size=6), max_size=12), st.lists(SMALL, min_size=1, max_size=4), st.booleans())
def test_equals_the_definition_for_every_way_to_cut_the_text(pieces: list[str], stop: list[str], include: bool) -> None:
    shown, stop_string = run(pieces, stop, include)
    assert ("".join(shown), stop_string) == by_definition("".join(pieces), stop, include)


@given(st.text("ab", max_size=40), st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=3))
def test_nothing_shown_is_ever_taken_back_and_at_most_len_minus_one_is_held(text: str, stop: list[str]) -> None:
    stop_filter = StopFilter(prepare_stop_strings(stop))
    final, _ = by_definition(text, stop, include=False)
    shown = ""
    for number, character in enumerate(text, 1):
        released = stop_filter.push(character)
        shown += released.text
        assert final.startswith(shown)
        if released.stop_string is not None:
            return
        assert number - len(shown) <= max(map(len, stop)) - 1


def test_of_two_that_end_together_the_longer_wins_in_whatever_order_they_are_given() -> None:
    for stop in (["b", "ab"], ["ab", "b"]):
        assert run(["xab"], stop) == (["x"], "ab")
        assert run(["xa", "b"], stop) == (["x", ""], "ab")


def test_a_stop_string_across_three_pieces_leaks_nothing() -> None:
    assert run(["ABC", "DE", "FG", "HIJ", "KL"], ["DEFGHIJ"]) == (["ABC", "", "", ""], "DEFGHIJ")


def test_what_only_looked_like_a_stop_string_is_shown() -> None:
    assert run(["ab", "EN", "x"], ["END"]) == (["ab", "", "ENx", ""], None)


def test_the_stop_string_may_be_the_whole_first_piece() -> None:
    assert run(["STOP"], ["STOP"]) == ([""], "STOP")
    assert run(["STOP now"], ["STOP"], include=True) == (["STOP"], "STOP")


def test_a_match_before_min_tokens_passes_and_a_later_one_counts() -> None:
    stop_filter = StopFilter(prepare_stop_strings(["aa"]))
    assert stop_filter.push("xaa", honoured=False).stop_string is None
    released = stop_filter.push("a")  # the match that ends here began before
    assert released.stop_string == "aa"


def test_a_match_that_counts_may_begin_in_text_that_did_not() -> None:
    stop_filter = StopFilter(prepare_stop_strings(["END"]))
    assert stop_filter.push("xEN", honoured=False).text == "x"
    assert stop_filter.push("D!").stop_string == "END"


def test_duplicates_and_no_stop_strings_at_all_are_fine() -> None:
    assert run(["a", "b"], []) == (["a", "b", ""], None)
    assert run(["a", "b"], ["b", "b"]) == (["a", ""], "b")


def test_hostile_text_costs_a_bounded_number_of_comparisons() -> None:
    """a^n against a^k b: a naive search reads k characters at each of n places. Counted, not timed."""

    class Counting(str):
        reads = 0

        def __getitem__(self, key):  # type: ignore[no-untyped-def, override]
            Counting.reads += 1
            return super().__getitem__(key)

    pattern = prepare_stop_strings(["a" * 1000 + "b"])[0]
    state, length = 0, 20_000
    for _ in range(length // 100):
        state, end = pattern.advance(state, Counting("a" * 100), honoured=True)
        assert end is None
    assert Counting.reads <= 4 * length
