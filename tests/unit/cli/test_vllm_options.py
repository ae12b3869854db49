"""vLLM's option names: each works, is a documented no-op, or is refused by its name with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.cli.not_here import NOT_HERE
from octavo.cli.options import OPTIONS, option_named
from octavo.config import EngineConfig
from octavo.server.config import ServerConfig
from support.cli_runner import run

# What command lines written for vLLM carry: a value, and the field of a configuration that must then hold it.
WORKS: dict[str, tuple[tuple[str, ...], str, Any]] = {
    "--max-model-len": (("96",), "max_model_len", 96),
    "--max-num-seqs": (("3",), "max_num_seqs", 3),
    "--max-num-batched-tokens": (("48",), "max_num_batched_tokens", 48),
    "--block-size": (("32",), "block_size", 32),
    "--enable-prefix-caching": ((), "enable_prefix_caching", True),
    "--no-enable-prefix-caching": ((), "enable_prefix_caching", False),
    "--gpu-memory-utilization": (("0.25",), "gpu_memory_utilization", 0.25),
    "--kv-cache-memory-bytes": (("1048576",), "kv_cache_memory_bytes", 2**20),
    "--kv-cache-dtype": (("bfloat16",), "kv_cache_dtype", "bfloat16"),
    "--num-gpu-blocks-override": (("7",), "num_gpu_blocks_override", 7),
    "--dtype": (("float32",), "dtype", "float32"),
    "--quantization": (("w8a8",), "quantization", "w8a8"),
    "--served-model-name": (("m",), "served_model_names", ("m",)),
    "--seed": (("5",), "seed", 5),
    "--scheduling-policy": (("priority",), "scheduling_policy", "priority"),
    "--chat-template": (("t.jinja",), "chat_template", Path("t.jinja")),
    "--tool-call-parser": (("hermes",), "tool_call_parser", "hermes"),
    "--reasoning-parser": (("deepseek_r1",), "reasoning_parser", "deepseek_r1"),
    "--api-key": (("k",), "api_keys", ("k",)),
}
NO_OPS = ("--enable-auto-tool-choice", "--enforce-eager", "--disable-log-stats")
REFUSED = (
    "--enable-chunked-prefill",
    "--no-enable-chunked-prefill",
    "--load-format",
    "--tokenizer",
    "--revision",
    "--long-prefill-token-threshold",
    "--max-num-partial-prefills",
    "--tensor-parallel-size",
    "--pipeline-parallel-size",
    "--data-parallel-size",
    "--override-generation-config",
    "--hf-overrides",
    "--logits-processors",
    "--stream-interval",
    "--kv-cache-metrics",
)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[EngineConfig, ServerConfig]]:
    calls: list[tuple[EngineConfig, ServerConfig]] = []

    def serve(engine: EngineConfig, server: ServerConfig) -> int:
        calls.append((engine, server))
        return 0

    monkeypatch.setattr("octavo.server.run.serve", serve)
    for name in ("OCTAVO_API_KEY", "OCTAVO_ADMIN_API_KEY", "OCTAVO_ISA"):
        monkeypatch.delenv(name, raising=False)
    return calls


@pytest.mark.parametrize("flag", WORKS)
@pytest.mark.parametrize("style", ["dashes", "equals"])
def test_an_option_that_works_sets_its_field(
    served: list[tuple[EngineConfig, ServerConfig]], flag: str, style: str
) -> None:
    values, field, wanted = WORKS[flag]
    arguments = (f"{flag}={values[0]}",) if values and style == "equals" else (flag, *values)
    result = run("serve", "fake", *arguments)
    assert result.exit_code == 0, result.stderr
    [(engine, server)] = served
    option = option_named(flag.removeprefix("--no-").removeprefix("--"))
    assert option.param == field
    assert getattr(engine if option.owner == "engine" else server, field) == wanted


@pytest.mark.parametrize("flag", NO_OPS)
def test_a_no_op_says_so_in_the_help_and_changes_nothing(
    served: list[tuple[EngineConfig, ServerConfig]], flag: str
) -> None:
    assert option_named(flag.removeprefix("--")).help.startswith("Does nothing here")
    assert run("serve", "fake").exit_code == 0
    assert run("serve", "fake", flag).exit_code == 0
    assert served[0] == served[1]


def test_every_option_that_does_nothing_is_a_known_no_op() -> None:
    assert {f"--{option.name}" for option in OPTIONS if option.owner == "nobody"} == set(NO_OPS)


@pytest.mark.parametrize("flag", REFUSED)
def test_an_option_that_is_not_here_is_refused_with_a_reason(flag: str) -> None:
    reason = NOT_HERE[flag.removeprefix("--")]
    assert len(reason.split()) > 2
    result = run("serve", "fake", flag, "1")
    assert result.exit_code == 2
    assert f"{flag} is an option of vLLM that octavo does not have: {reason}" in result.stderr


@pytest.mark.parametrize("flag", REFUSED)
def test_the_file_refuses_it_with_the_same_reason(flag: str, tmp_path: Path) -> None:
    name = flag.removeprefix("--")
    path = tmp_path / "o.toml"
    path.write_text(f"{name} = 1")
    result = run("serve", "fake", "--config", str(path))
    assert result.exit_code == 1
    assert NOT_HERE[name] in result.stderr
