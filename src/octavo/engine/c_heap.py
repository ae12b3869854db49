"""Makes the C heap give freed memory back to the system. Refuses to guess: where the C library is not glibc, nothing.

glibc keeps what was freed in the middle of its heap, and what threads freed in arenas of their own, until it is asked.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable


def c_heap_trim() -> Callable[[], None] | None:
    """glibc's malloc_trim; None with other C libraries."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return lambda: trim(0)
