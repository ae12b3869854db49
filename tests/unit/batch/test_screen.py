from __future__ import annotations

from octavo.batch.run import Done
from octavo.batch.screen import BatchBar, Rate, sentence


def test_the_rate_is_that_of_the_last_seconds() -> None:
    rate = Rate(window_seconds=5.0)
    assert rate.add(10.0, 0) == 0.0
    assert rate.add(11.0, 100) == 100.0
    assert rate.add(12.0, 100) == 50.0
    for second in range(13, 40):
        found = rate.add(float(second), 100 + 30 * (second - 12))
    assert found == 30.0
    assert rate.add(39.0, 1000) > 0


def test_the_sentence_says_what_was_done_and_what_is_left() -> None:
    assert sentence(Done(3, 3, 0, 0)) == "3 of 3 were answered before; all are done"
    whole = Done(1200, 200, 2, 57, num_prompt_tokens=5000, num_output_tokens=1000, seconds=3.0, num_answered=1000)
    assert sentence(whole) == (
        "took away a torn last line of 57 bytes; 200 of 1,200 were answered before; answered 1,000 in 3.0 s: 5,000 "
        "tokens in, 1,000 out, 2,000 tokens/s; all are done; 2 errors among them"
    )
    stopped = Done(10, 0, 1, 0, num_answered=4, seconds=1.0, was_stopped=True)
    assert "6 are left: run the same command again; 1 error among them" in sentence(stopped)


def test_no_bar_is_drawn_where_no_terminal_is(capsys: object) -> None:
    with BatchBar(10, 2, 1) as bar:
        bar.advance(1)
        bar.show(0.0, 5, 5)
    assert capsys.readouterr() == ("", "")  # type: ignore[attr-defined]
