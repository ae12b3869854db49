"""The keys that open the door, and what each is worth: a name, a weight, rates, a share of the KV cache.

Refuses to keep a key: only its SHA-256, so that nothing that prints, logs or dumps this shows one. Compares in constant
time, on bytes, against every key. `Keys` is the one object that changes: `reload` reads the key file again (SIGHUP) and
puts the new keys in the place of the old ones in one assignment, or, where the file is wrong, changes nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from octavo.errors import ConfigError
from octavo.server.caller import Caller
from octavo.server.config import ServerConfig
from octavo.server.key_terms import NO_TERMS, KeyTerms
from octavo.server.rates import Meter


def digest_of(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


@dataclass(frozen=True, slots=True)
class Key:
    digest: bytes = field(repr=False)
    terms: KeyTerms = NO_TERMS

    @classmethod
    def of(cls, key: str, terms: KeyTerms | None = None) -> Key:
        return cls(digest_of(key.encode("utf-8")), terms or NO_TERMS)


class KeyRing:
    """A fixed set of keys."""

    def __init__(self, keys: Sequence[Key]) -> None:
        """Raises ConfigError where two are the same."""
        if len({key.digest for key in keys}) != len(keys):
            raise ConfigError("one key is given twice; each needs its own", param="api_key")
        self.keys = tuple(keys)

    def find(self, presented: bytes) -> Key | None:
        digest = digest_of(presented)
        found: Key | None = None
        for key in self.keys:  # all of them, whether one matched or not
            if hmac.compare_digest(digest, key.digest):
                found = key
        return found


class Keys:
    """Those of the command line and of the key file; what each has used of its rates outlives a reload."""

    def __init__(
        self, config: ServerConfig, clock: Callable[[], float] = time.monotonic, *, has_weights: bool = True
    ) -> None:
        """`has_weights`: the scheduling policy looks at them; else none may be given. Raises ConfigError."""
        self._config = config
        self._has_weights = has_weights
        self._clock = clock
        self._meters: dict[str, Meter] = {}  # by name, of keys that have one
        self._ring = self._read()

    @property
    def is_open(self) -> bool:
        """Nobody needs a key, whatever a key file is rewritten to."""
        return not self._config.api_keys and self._config.api_key_file is None

    @property
    def has_admin(self) -> bool:
        return any(key.terms.is_admin for key in self._ring.keys)

    def has_several(self) -> bool:
        """Whether what one key holds can be wanted by another."""
        return len(self) > 1

    def __len__(self) -> int:
        return len(self._ring.keys)

    def caller(self, presented: bytes) -> Caller | None:
        """Whose key it is; None where it is nobody's."""
        key = self._ring.find(presented)
        return None if key is None else Caller.of_key(presented, key.terms, self._meters.get(key.terms.name))

    def reload(self) -> None:
        """Raises ConfigError, and keeps the keys it has, where the file is wrong."""
        self._ring = self._read()

    def _read(self) -> KeyRing:
        config = self._config
        keys = [Key.of(key) for key in config.api_keys]
        if config.admin_api_key is not None:
            keys.append(Key.of(config.admin_api_key, KeyTerms(is_admin=True)))
        if config.api_key_file is not None:
            from octavo.server.key_file import read_key_file

            keys += read_key_file(config.api_key_file)
        ring = KeyRing(keys)
        weighed = next((key.terms.name for key in keys if key.terms.weight is not None), None)
        if weighed is not None and not self._has_weights:
            raise ConfigError(
                f"the key {weighed} has a weight, which is for the scheduling policy fair; start with "
                "--scheduling-policy fair, or leave the weights out",
                param="api_key_file",
            )
        named = [key.terms for key in keys if key.terms.name]
        self._meters = {terms.name: self._meters.get(terms.name) or Meter(self._clock) for terms in named}
        for terms in named:
            self._meters[terms.name].set_rates(terms)
        return ring
