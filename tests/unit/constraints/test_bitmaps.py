"""A place keeps its bitmap whatever happens to the others."""

from __future__ import annotations

import ctypes

import numpy as np

from octavo.constraints.bitmaps import BitmapPlaces

VOCAB = 100  # 4 words


def test_bitmaps_keep_their_places_and_bits_while_the_array_grows() -> None:
    places = BitmapPlaces(VOCAB)
    assert places.num_bytes == 16
    taken = []
    for number in range(100):
        taken.append(places.take())
        places[taken[-1]].fill(number)
    assert sorted(taken) == list(range(100))
    assert [places[place].tolist() for place in taken] == [[number] * 4 for number in range(100)]


def test_an_address_is_that_of_the_bitmap() -> None:
    places = BitmapPlaces(VOCAB)
    for place in [places.take() for _ in range(20)]:
        ctypes.memset(places.address(place), place, places.num_bytes)
        assert places[place].view(np.uint8).tolist() == [place] * 16


def test_a_place_that_was_given_back_is_taken_again() -> None:
    places = BitmapPlaces(VOCAB)
    for _ in range(1000):
        one, other = places.take(), places.take()
        assert one != other
        places.give_back(one)
        places.give_back(other)
    assert len(places.array) < 20


def test_what_is_written_to_an_array_that_was_left_reaches_nobody() -> None:
    places = BitmapPlaces(VOCAB)
    place = places.take()
    places[place].fill(7)
    address = places.address(place)
    old = places.array
    places.leave_array()
    assert places[place].tolist() == [7] * 4
    ctypes.memset(address, 1, places.num_bytes)
    assert old[place].view(np.uint8).tolist() == [1] * 16
    assert places[place].tolist() == [7] * 4
    assert places.address(place) != address
