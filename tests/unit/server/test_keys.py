from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.server.config import ServerConfig
from octavo.server.key_file import MAX_FILE_BYTES, read_key_file
from octavo.server.key_terms import KeyTerms
from octavo.server.keys import Key, KeyRing, Keys

pytestmark = pytest.mark.security("S5")

GOOD = """
[[key]]
name = "team-a"
key = "sk-a"
weight = 2.0
requests_per_minute = 600
tokens_per_minute = 200_000
kv_share = 0.5

[[key]]
name = "hashed"
sha256 = "{digest}"
admin = true
"""


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "keys.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(0o600)
    return path


def good(folder: Path) -> Path:
    return write(folder, GOOD.format(digest=hashlib.sha256(b"sk-hash").hexdigest()))


def test_a_file_gives_each_key_its_terms_and_keeps_none_of_them(tmp_path: Path) -> None:
    first, second = read_key_file(good(tmp_path))
    assert first.terms == KeyTerms("team-a", False, 2.0, 600, 200_000, 0.5)
    assert second.terms == KeyTerms("hashed", True)
    keys = Keys(ServerConfig(api_key_file=tmp_path / "keys.toml"))
    assert not keys.is_open
    assert keys.has_admin
    caller = keys.caller(b"sk-a")
    assert caller is not None
    assert (caller.is_admin, caller.client_id("user")) == (False, "key-team-a")
    admin = keys.caller(b"sk-hash")
    assert admin is not None
    assert admin.is_admin
    for wrong in (
        b"",
        b"sk-",
        b"sk-aa",
        b"SK-A",
        "sk-\u0430".encode(),
        hashlib.sha256(b"sk-hash").hexdigest().encode(),
    ):
        assert keys.caller(wrong) is None
    assert "sk-a" not in repr(vars(keys)) + repr(first) + repr(caller)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no [[key]]"),
        ("key = 5", "no [[key]]"),
        ("key = [5]", "no table"),
        ("[[keys]]\nname = 'a'", "no entry 'keys'"),
        ("[[key]]\nkey = 'k'", "key 1 needs a name"),
        ("[[key]]\nname = 'a b'\nkey = 'k'", "name must have"),
        ("[[key]]\nname = 'a\\n'\nkey = 'hush'", "name must have"),
        ("[[key]]\nname = 'a'", "either key or sha256"),
        ("[[key]]\nname = 'a'\nkey = 'hush'\nsha256 = 'x'", "either key or sha256"),
        ("[[key]]\nname = 'a'\nsha256 = 'hush'", "64 hex digits"),
        ("[[key]]\nname = 'a'\nkey = 5", "key must be text"),
        ("[[key]]\nname = 'a'\nkey = ' hush'", "holds blanks"),
        ("[[key]]\nname = 'a'\nkey = 'hush'\nweigth = 1", "no entry 'weigth'"),
        (
            "[[key]]\nname = 'a'\nkey = 'hush'\nweight = 0",
            "weight of the key a must be a number above 0, up to 1,000,000",
        ),
        ("[[key]]\nname = 'a'\nkey = 'hush'\nweight = true", "weight"),
        ("[[key]]\nname = 'a'\nkey = 'hush'\nkv_share = 1.5", "kv_share"),
        ("[[key]]\nname = 'a'\nkey = 'hush'\nrequests_per_minute = 'many'", "requests_per_minute"),
        ("[[key]]\nname = 'a'\nkey = 'hush'\ntokens_per_minute = nan", "tokens_per_minute"),
        ("[[key]]\nname = 'a'\nkey = 'hush'\nadmin = 1", "key 1: admin must be true or false"),
        ("[[key]]\nname = 'a'\nkey = 'hush'\n" * 2, "stands twice"),
        ("[[key]]\nname = 'a'\nkey = hush", "not TOML (line 3"),
        (b"\xff\xfe", "not TOML"),
        ("a = " + "[" * 100_000, "not TOML"),
        (b" " * (MAX_FILE_BYTES + 1), "above"),
    ],
)
def test_a_wrong_file_is_told_with_the_entry_and_never_with_a_key(
    text: str | bytes, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_key_file(write(tmp_path, text))
    assert words in caught.value.message
    assert caught.value.message.count("--api-key-file") == 1
    assert caught.value.message.count("key 1") <= 1
    assert "hush" not in caught.value.message
    assert caught.value.param == "api_key_file"


def test_a_file_that_opens_and_cannot_be_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.symlink_to("/proc/self/mem")  # a regular file whose first byte is an input/output error
    with pytest.raises(ConfigError, match=r"keys\.toml: it cannot be read"):
        read_key_file(path)


def test_one_key_under_two_names_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "[[key]]\nname = 'a'\nkey = 'hush'\n[[key]]\nname = 'b'\nkey = 'hush'\n")
    with pytest.raises(ConfigError, match="given twice"):
        Keys(ServerConfig(api_key_file=path))
    with pytest.raises(ConfigError, match="given twice"):
        KeyRing([Key.of("k"), Key.of("k")])


def test_a_reload_takes_the_new_keys_or_changes_nothing_and_forgets_no_debt(tmp_path: Path) -> None:
    path = write(tmp_path, "[[key]]\nname = 'a'\nkey = 'one'\ntokens_per_minute = 100\n")
    keys = Keys(ServerConfig(api_key_file=path), clock=lambda: 0.0)
    caller = keys.caller(b"one")
    assert caller is not None
    meter = caller.meter
    assert meter is not None
    meter.charge_tokens(500)

    write(tmp_path, "[[key]]\nname = 'a'\nkey = 'two'\ntokens_per_minute = 100\n")
    keys.reload()
    assert keys.caller(b"one") is None
    again = keys.caller(b"two")
    assert again is not None
    assert again.meter is meter, "a new key of the same name owes what the old one did"

    for wrong in ("", "[[key]]\nname = 'a'\n", "x = ["):
        write(tmp_path, wrong)
        with pytest.raises(ConfigError):
            keys.reload()
        assert keys.caller(b"two") is not None
    write(tmp_path, "[[key]]\nname = 'a'\nkey = 'two'\ntokens_per_minute = 200\n")
    keys.reload()
    other = keys.caller(b"two")
    assert other is not None
    assert other.meter is meter, "so do other rates"


def test_without_a_key_the_door_is_open_and_a_key_file_of_administrators_alone_shuts_it(tmp_path: Path) -> None:
    assert Keys(ServerConfig()).is_open
    assert Keys(ServerConfig(admin_api_key="root")).is_open
    path = write(tmp_path, "[[key]]\nname = 'root'\nkey = 'root'\nadmin = true\n")
    assert not Keys(ServerConfig(api_key_file=path)).is_open


def test_a_weight_that_the_policy_does_not_look_at_is_refused(tmp_path: Path) -> None:
    config = ServerConfig(api_key_file=good(tmp_path))
    with pytest.raises(ConfigError, match="--scheduling-policy fair"):
        Keys(config, has_weights=False)
    assert len(Keys(config)) == 2
