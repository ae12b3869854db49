from __future__ import annotations

import pytest

from octavo.errors import Forbidden
from octavo.server.caller import Caller


def test_two_keys_never_share_a_salt_whatever_their_clients_choose() -> None:
    parts = ["", "a", "b", "ab", "ba", "abab", "é", "\x00", "\x01\x00\x00\x00\x00\x00\x00\x00a"]
    callers = [Caller(), *(Caller.of_key(part.encode()) for part in parts if part)]
    salts = [caller.salt(part) for caller in callers for part in parts]
    assert len(set(salts)) == len(callers) * len(parts)
    raw = Caller().salt(Caller.of_key(b"a").salt(None))  # a client that knows the salt itself
    assert raw not in salts


def test_a_salt_is_the_same_in_every_process_and_hides_the_key() -> None:
    salt = Caller.of_key(b"secret").salt("mine")
    assert salt == Caller.of_key(b"secret").salt("mine")
    assert (
        salt == "a26ca52429aea2d1580124b98bf502172a41fa20cdda3e54de78ca6374c1590d"
    )  # as yesterday, and in every server
    assert "secret" not in Caller.of_key(b"secret").owner


def test_without_keys_only_the_cache_salt_separates() -> None:
    assert Caller().salt(None) == ""
    assert Caller().salt("a") not in ("", "a", Caller().salt("b"))


def test_an_explanation_speaks_of_the_same_key_only_and_without_keys_of_the_same_salt() -> None:
    keyed = Caller.of_key(b"k")
    assert keyed.tenant(None) == keyed.tenant("a") == keyed.owner
    assert Caller().tenant("a") == Caller().salt("a") != Caller().tenant("b")
    private = Caller(is_admin=True)
    assert private.tenant("a") == private.tenant("b") == ""


def test_a_share_of_the_server_belongs_to_the_key_else_to_the_user() -> None:
    keyed = Caller.of_key(b"k")
    assert keyed.client_id("user") == keyed.client_id(None) == f"key-{keyed.owner[:12]}", (
        "the whole hash proves the key"
    )
    assert (Caller().client_id("user"), Caller().client_id(None)) == ("user", "")


def test_who_is_no_administrator_is_told_how_to_become_one() -> None:
    Caller(is_admin=True).require_admin()
    with pytest.raises(Forbidden, match="OCTAVO_ADMIN_API_KEY, --admin-api-key, or as admin in its key file"):
        Caller.of_key(b"k").require_admin()
