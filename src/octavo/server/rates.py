"""Requests and tokens a minute of one key: two buckets that refill evenly and hold a minute's worth.

Refuses (RateLimited, 429 with the seconds until it would pass) what finds too little left. A prompt is charged when it
is asked for, an answer as it is drawn, whatever its length: what is overdrawn is waited for by the next request. Where
more is drawn than is told (best_of, beams) all of it is charged, as much as it may be ahead, and the rest given back. A
prompt longer than a minute's worth passes when the bucket is full. Knows no key and no clock.
"""

from __future__ import annotations

from collections.abc import Callable

from octavo.errors import RateLimited
from octavo.server.key_terms import KeyTerms

_MINUTE = 60.0


class Bucket:
    """Invariant: the level is at most a minute's worth; it may be below 0."""

    def __init__(self, per_minute: float, clock: Callable[[], float]) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._level = self._most
        self._at = clock()

    def set_rate(self, per_minute: float) -> None:
        """From now on; what is owed stays owed."""
        self._refill()
        self.per_minute = per_minute
        self._level = min(self._level, self._most)

    def wait_seconds(self, amount: float) -> float:
        """Until `amount`, or a full bucket, is there; 0: now."""
        self._refill()
        return max(0.0, min(amount, self._most) - self._level) * _MINUTE / self.per_minute

    def charge(self, amount: float) -> None:
        self._refill()
        self._level -= amount

    @property
    def _most(self) -> float:
        return max(self.per_minute, 1.0)  # one request a key may always have, however seldom

    def _refill(self) -> None:
        now = self._clock()
        self._level = min(self._most, self._level + (now - self._at) * self.per_minute / _MINUTE)
        self._at = now


class Meter:
    """Of one key, for as long as its name is known: requests under way hold on to it while the rates change."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._requests: Bucket | None = None
        self._tokens: Bucket | None = None

    def set_rates(self, terms: KeyTerms) -> None:
        self._requests = self._bucket(self._requests, terms.requests_per_minute)
        self._tokens = self._bucket(self._tokens, terms.tokens_per_minute)

    def take_request(self) -> None:
        """Raises RateLimited."""
        self._take(self._requests, 1, "requests")

    def take_prompt(self, num_tokens: int) -> None:
        """Raises RateLimited."""
        self._take(self._tokens, num_tokens, "tokens")

    def charge_tokens(self, num_tokens: int) -> None:
        if self._tokens is not None and num_tokens:
            self._tokens.charge(num_tokens)

    def _take(self, bucket: Bucket | None, amount: float, what: str) -> None:
        if bucket is None:
            return
        seconds = bucket.wait_seconds(amount)
        if seconds > 0.0:
            raise RateLimited(f"this key may have {bucket.per_minute:g} {what} a minute; wait and ask again", seconds)
        bucket.charge(amount)

    def _bucket(self, old: Bucket | None, per_minute: float | None) -> Bucket | None:
        if old is None or per_minute is None:
            return None if per_minute is None else Bucket(per_minute, self._clock)
        old.set_rate(per_minute)
        return old
