"""Who sent a request, as far as its key tells, and what is kept apart because of it: caches, requests, fair shares.

Refuses to hold a key: only hashes of it, the same in every process with the same key, so that a tenant finds its own
blocks again after a restart. Made by the door, once a request. Invariants: two keys never share a salt, whatever
cache_salt their clients choose (the parts are typed and length-prefixed); without keys only cache_salt separates.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING

from octavo.errors import Forbidden
from octavo.server.key_terms import NO_TERMS, KeyTerms

if TYPE_CHECKING:
    from fastapi import Request

    from octavo.server.rates import Meter

CLIENT_HASH_CHARS = 12
_owner_of_task: ContextVar[str] = ContextVar("owner_of_task", default="")


@dataclass(frozen=True, slots=True)
class Caller:
    owner: str = ""  # a hash of the key; "": the server asks for none, so nobody can be told from anybody
    is_admin: bool = False
    terms: KeyTerms = NO_TERMS  # what its key is worth
    meter: Meter | None = field(default=None, compare=False)  # counts what its key uses; None: it has no name

    @classmethod
    def of_key(cls, key: bytes, terms: KeyTerms = NO_TERMS, meter: Meter | None = None) -> Caller:
        return cls(_digest(b"octavo owner", key), terms.is_admin, terms, meter)

    @classmethod
    def of(cls, http: Request) -> Caller:
        """Whom the door let in."""
        caller = http.scope["octavo.caller"]
        assert isinstance(caller, Caller)
        return caller

    def salt(self, cache_salt: str | None) -> str:
        """What separates the prefix cache of this key, and of this cache_salt; "" where there is neither."""
        if not self.owner and not cache_salt:
            return ""
        return _digest(b"octavo cache salt", self.owner.encode(), (cache_salt or "").encode("utf-8"))

    def tenant(self, cache_salt: str | None) -> str:
        """Whose earlier prompts an explanation of a cache hit may speak of. Callers that nobody can tell apart are
        told of their own salt alone: else the explanation would give away what the salt hides."""
        return self.owner if self.owner or self.is_admin else self.salt(cache_salt)

    def client_id(self, user: str | None) -> str:
        """Whose share of the server is used: the key's, by its name or a short hash, else the `user` field's."""
        if self.terms.name:
            return f"key-{self.terms.name}"
        return f"key-{self.owner[:CLIENT_HASH_CHARS]}" if self.owner else user or ""

    def require_admin(self) -> None:
        """Raises Forbidden."""
        if not self.is_admin:
            raise Forbidden(
                "this route is the administrator's; send the key the server was given with OCTAVO_ADMIN_API_KEY, "
                "--admin-api-key, or as admin in its key file"
            )


def note_owner(owner: str) -> None:
    """Whose request this task, and each that it starts, works for."""
    _owner_of_task.set(owner)


def owner_of_task() -> str:
    """For what is shared out among keys far below the routes; "" where nobody can be told from anybody."""
    return _owner_of_task.get()


def _digest(*parts: bytes) -> str:
    return sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).hexdigest()
