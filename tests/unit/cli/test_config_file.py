from __future__ import annotations

from pathlib import Path

import pytest

from octavo.cli.config_file import MAX_CONFIG_BYTES, read_config_file
from octavo.errors import ConfigError


def write(folder: Path, text: str, name: str = "octavo.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_names_are_those_of_the_command_line_with_dashes_or_underscores(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        'model = "fake"\nport = 9000\nmax_num_seqs = 3\nkv-cache-memory-bytes = "1GiB"\nmax-model-len = "2k"\nenable-prefix-caching = false\n'
        'api-key = ["a", "b"]\nserved-model-name = "m"\ngpu-memory-utilization = 1\nthreads = 2\n',
    )
    assert read_config_file(path) == {
        "model": "fake",
        "port": 9000,
        "max_num_seqs": 3,
        "kv_cache_memory_bytes": 2**30,
        "max_model_len": 2000,
        "enable_prefix_caching": False,
        "api_keys": ["a", "b"],
        "served_model_names": ["m"],
        "gpu_memory_utilization": 1,
        "num_threads": 2,
    }


def test_json_holds_the_same(tmp_path: Path) -> None:
    assert read_config_file(write(tmp_path, '{"block-size": 32}', "o.json")) == {"block_size": 32}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-num-seq = 1", "did you mean max-num-seqs"),
        ("zzz = 1", "there is no option 'zzz'"),
        ("tensor_parallel_size = 2", "option of vLLM that octavo does not have"),
        ("port = '80'", "whole number"),
        ("port = true", "whole number"),
        ("gpu-memory-utilization = 'x'", "a number"),
        ("enable-prefix-caching = 1", "true or false"),
        ("host = 1", "text in quotes"),
        ("api-key = [1]", "list of them"),
        ("dtype = 'half'", "it may be auto, bfloat16, float32"),
        ("kv-cache-memory-bytes = '1 elephant'", "kv-cache-memory-bytes: '1 elephant' is not a size"),
        ("max_num_seqs = 1\nmax-num-seqs = 2", "given twice"),
        ("port = ", "is not TOML"),
        ("[section]\nport = 1", "there is no option 'section'"),
    ],
)
def test_an_error_names_the_file_and_the_key(tmp_path: Path, text: str, words: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_config_file(path)
    assert str(path) in caught.value.message
    assert words in caught.value.message


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path / "absent.toml", "No such file"),
        (tmp_path, "Is a directory"),
        (write(tmp_path, "[1]", "list.json"), "a table"),
        (write(tmp_path, "[" * 100_000, "deep.json"), "is not JSON"),
        (write(tmp_path, "#" * (MAX_CONFIG_BYTES + 1), "big.toml"), "larger than"),
    ):
        with pytest.raises(ConfigError, match=words):
            read_config_file(path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "o.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not TOML"):
        read_config_file(path)
