"""A disk that fails under a server: one warning, and every request is answered as if there had never been a tier."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from support.kv_heavy import distinct_prompt, kv_heavy_folder
from support.server_process import ServerProcess, until

NUM_PROMPTS, PROMPT_TOKENS = 3, 64  # four blocks of 2 MiB each, in a pool for one of them
MOST_FILE_BYTES = 2**20
LIMITED = (
    sys.executable,
    "-c",
    f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({MOST_FILE_BYTES},) * 2); "
    "os.execvp(sys.argv[1], sys.argv[1:])",
)


@contextmanager
def small_disk(path: Path) -> Iterator[None]:
    """Room for one block and the index, where the test may mount something."""
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", path], capture_output=True, check=False, text=True
    )
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def ask(server: ServerProcess, number: int) -> str:
    body = {"model": "m", "prompt": list(distinct_prompt(number, PROMPT_TOKENS)), "max_tokens": 8, "ignore_eos": True}
    response = httpx.post(f"{server.url}/v1/completions", json=body | {"temperature": 0}, timeout=120)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


def check(tmp_path: Path, words: str, wrapper: tuple[str, ...] = (), *, break_blocks: bool = False) -> None:
    model, tier = kv_heavy_folder(tmp_path / "model"), tmp_path / "tier"
    options = ("--kv-cache-dtype", "float32", "--num-gpu-blocks-override", "6", "--max-model-len", "80")
    options += ("--threads", "1", "--served-model-name", "m", "--kv-tier-policy", "swap")
    options += ("--kv-tier", f"disk:{tier},256MiB")
    with ServerProcess(str(model), *options, log=tmp_path / "server.log", wrapper=wrapper) as server:
        engine = server.engine()
        expected = [ask(server, number) for number in range(NUM_PROMPTS)]
        if break_blocks:
            until("stored blocks", lambda: server.metrics()["octavo:kv_tier_blocks"] >= 4 * (NUM_PROMPTS - 1))
            for folder in list((tier / "octavo-kv-1" / "blocks").iterdir()):
                shutil.rmtree(folder)
                folder.touch()  # a file in the folder's place: nothing under it can be opened, not even by root
        for _ in range(2):
            assert [ask(server, number) for number in range(NUM_PROMPTS)] == expected
        until("a tier turned off", lambda: server.metrics()["octavo:kv_tier_off"] == 1)
        assert [ask(server, number) for number in range(NUM_PROMPTS)] == expected
        assert server.output.count("is turned off") == 1
        assert words in server.output
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert server.engine() == engine
        until("an idle server", server.is_idle)
        assert server.metrics()["octavo:kv_block_leak_total"] == 0
        server.terminate()
        assert server.wait() == 0


def test_a_full_disk_turns_the_tier_off_and_serving_goes_on(tmp_path: Path) -> None:
    with small_disk(tmp_path / "tier"):
        check(tmp_path, "No space left on device")


def test_a_limit_on_the_size_of_files_turns_the_tier_off_and_serving_goes_on(tmp_path: Path) -> None:
    check(tmp_path, "File too large", LIMITED)


def test_files_that_cannot_be_read_turn_the_tier_off_and_serving_goes_on(tmp_path: Path) -> None:
    check(tmp_path, "failed: No", break_blocks=True)  # "Not a directory", or "No such file" to who came in between
