from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

from octavo.bench.plots import checked_plot, in_flight, rate, save
from octavo.bench.svg import MOST_POINTS, Bars, Panel, Series, cdf, nice_ticks, picture
from octavo.errors import ConfigError

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def points(svg: str) -> list[list[tuple[float, float]]]:
    """Of each line."""
    lines = [line.attrib["points"].split() for line in ElementTree.fromstring(svg).iter(f"{SVG}polyline")]
    return [[(float(x), float(y)) for x, y in (pair.split(",") for pair in line)] for line in lines]


def test_a_picture_is_well_formed_and_names_its_axes_whatever_a_name_holds() -> None:
    series = [Series("a <b> & 'c'", [(0, 0), (5, 1)]), Series("ü", [(0, 0.5), (9, 1)])]
    svg = picture('<title> "&"', "sub", [Panel("P & Q", "milliseconds", "share", series, y_most=1.0)])
    found = texts(svg)
    assert {'<title> "&"', "P & Q", "milliseconds", "share", "a <b> & 'c'", "ü"} <= set(found)


def test_lines_lie_within_the_picture_and_end_at_the_axes() -> None:
    svg = picture("t", "s", [Panel("p", "x", "y", [Series("", [(0, 0), (10, 1)])], y_most=1.0)] * 3)
    root = ElementTree.fromstring(svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for line in points(svg):
        assert all(0 <= x <= width and 0 <= y <= height for x, y in line)
        (x0, y0), (x1, y1) = line[0], line[-1]
        assert x1 > x0
        assert y1 < y0  # pixels grow downwards
    transforms = [group.attrib["transform"] for group in root.findall(f"{SVG}g")]
    assert len(set(transforms)) == 3


def test_bars_are_as_long_as_their_values() -> None:
    bars = [("one", 0.25, "a"), ("two", 0.5, "b")]
    root = ElementTree.fromstring(picture("t", "s", [Bars("title", "share", bars)]))
    widths = [float(each.attrib["width"]) for each in root.iter(f"{SVG}rect") if "%" not in each.attrib["width"]]
    assert widths[1] == pytest.approx(2 * widths[0], abs=0.2)


@pytest.mark.parametrize(
    "panel", [Panel("p", "x", "y", []), Panel("p", "x", "y", [Series("", [])]), Bars("b", "x", [])]
)
def test_a_picture_of_nothing_is_a_picture(panel: Panel | Bars) -> None:
    assert "<svg" in picture("t", "s", [panel])
    ElementTree.fromstring(picture("t", "s", [panel]))


@pytest.mark.parametrize("most", [1e-9, 0.003, 0.99, 1.0, 7.0, 10.0, 11.0, 123456.0])
def test_ticks_are_round_reach_the_most_and_are_few(most: float) -> None:
    ticks = nice_ticks(most)
    assert ticks[0] == 0
    assert ticks[-1] >= most * (1 - 1e-9)
    assert 3 <= len(ticks) <= 9
    assert round(ticks[1] / 10 ** math.floor(math.log10(ticks[1]) + 1e-9), 6) in (1, 2, 5)


def test_a_distribution_rises_from_none_to_all_and_is_thinned() -> None:
    assert list(cdf([3.0, 1.0])) == [(1.0, 0.0), (1.0, 0.5), (3.0, 1.0)]
    many = cdf([float(i) for i in range(100_000)])
    assert len(many) <= 2 * MOST_POINTS
    assert many[-1] == (99_999.0, 1.0)
    assert not cdf([])


def test_rates_add_up_to_what_came() -> None:
    found = rate([0.1, 0.2, 0.2, 6.0])
    width = found[1][0] - found[0][0]
    assert sum(value for _, value in found[:-1]) * width == pytest.approx(4)
    assert not rate([])


def test_what_is_in_flight_is_thinned_without_losing_its_peak() -> None:
    assert list(in_flight([(0.0, 2.0), (1.0, 3.0)])) == [(0.0, 0.0), (0.0, 1.0), (1.0, 2.0), (2.0, 1.0), (3.0, 0.0)]
    many = in_flight([(float(i), i + 2.5) for i in range(5_000)])
    assert len(many) <= MOST_POINTS
    assert max(value for _, value in many) == 3


def test_only_what_can_be_written_is_promised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked_plot(None) is None
    assert checked_plot(tmp_path / "a.svg") == tmp_path / "a.svg"
    for path, words in ((tmp_path / "a.gif", "no known ending"), (tmp_path / "no" / "a.svg", "a folder that exists")):
        with pytest.raises(ConfigError, match=words):
            checked_plot(path)
    monkeypatch.setattr("octavo.bench.plots.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install cairosvg"):
        checked_plot(tmp_path / "a.png")
    save(tmp_path / "a.svg", picture("t", "s", []))
    ElementTree.parse(tmp_path / "a.svg")
