"""The bitmaps of the rows that have one, in one array that a sampler reads by places.

A place is taken for as long as a row is known, so that its bitmap can be made at any time between two steps. Refuses to
know what the bits mean.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.constraints.constraint import Bitmap, num_words

Bitmaps = npt.NDArray[np.uint32]  # [places, words]


class BitmapPlaces:
    """Grows with the rows, and does not shrink: a row's bitmap takes an eighth of a byte a token of the vocabulary."""

    def __init__(self, vocab_size: int) -> None:
        self.array: Bitmaps = np.empty((0, num_words(vocab_size)), np.uint32)
        self.num_bytes = 4 * num_words(vocab_size)  # of one
        self._address: int = 0
        self._free: list[int] = []

    def __getitem__(self, place: int) -> Bitmap:
        bitmap: Bitmap = self.array[place]
        return bitmap

    def address(self, place: int) -> int:
        """Of the bitmap in memory, until a place is taken or the array is left."""
        return self._address + place * self.num_bytes

    def take(self) -> int:
        """A place whose bitmap holds anything."""
        if not self._free:
            num_places = len(self.array)
            self._move(max(8, 2 * num_places))
            self._free += range(len(self.array) - 1, num_places - 1, -1)
        return self._free.pop()

    def give_back(self, place: int) -> None:
        self._free.append(place)

    def leave_array(self) -> None:
        """Goes on in a copy: somebody else will write to the old array, nobody knows for how long."""
        self._move(len(self.array))

    def _move(self, num_places: int) -> None:
        old = self.array
        self.array = np.empty((num_places, old.shape[1]), np.uint32)
        self.array[: len(old)] = old
        self._address = self.array.ctypes.data
