from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import octavo.server.config
from octavo.cli.not_here import NOT_HERE
from octavo.cli.options import OPTIONS, SERVER_DEFAULTS, help_of
from octavo.config import EngineConfig
from octavo.server.config import ServerConfig
from octavo.server.limits import Limits
from support.cli_runner import run

Served = list[tuple[EngineConfig, ServerConfig]]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    """What `octavo serve` hands over, instead of a server."""
    calls: Served = []
    module = pytest.importorskip("octavo.server.run")

    def serve(engine: EngineConfig, server: ServerConfig) -> int:
        calls.append((engine, server))
        return 0

    monkeypatch.setattr(module, "serve", serve)
    monkeypatch.delenv("OCTAVO_API_KEY", raising=False)
    monkeypatch.delenv("OCTAVO_ADMIN_API_KEY", raising=False)
    monkeypatch.delenv("OCTAVO_ISA", raising=False)
    return calls


def test_every_option_names_a_field_of_its_owner() -> None:
    owned = {
        "engine": {field.name for field in dataclasses.fields(EngineConfig)},
        "server": {field.name for field in dataclasses.fields(octavo.server.config.ServerConfig)},
        "limits": {field.name for field in dataclasses.fields(Limits)},
    }
    for option in OPTIONS:
        if option.owner != "nobody":
            assert option.param in owned[option.owner], option.name


def test_every_limit_has_an_option(served: Served) -> None:
    for field in dataclasses.fields(Limits):
        default = 7 if field.default is None else field.default
        value = field.metadata["most"] or default * 2
        assert run("serve", f"--{field.name.replace('_', '-')}", str(value)).exit_code == 0, field.name
        assert getattr(served[-1][1].limits, field.name) == value
    assert run("serve", "--max-tools", "129").stderr == "octavo: error: max_tools is 129; it must be at most 128\n"
    assert run("serve", "--max-body-bytes", "1MiB").exit_code == 0
    assert served[-1][1].limits.max_body_bytes == 2**20


def test_origins_come_one_by_one_or_as_vllms_list(served: Served) -> None:
    origins = ("https://a.example", "https://b.example:81")
    assert run("serve", "--allowed-origins", origins[0], "--allowed-origins", origins[1]).exit_code == 0
    assert run("serve", "--allowed-origins", '["https://a.example", "https://b.example:81"]').exit_code == 0
    assert [server.allowed_origins for _, server in served] == [origins] * 2


@pytest.mark.parametrize("option", ["--allowed-origins", "--allowed-methods", "--allowed-headers"])
@pytest.mark.parametrize("wrong", ["[1]", "[", '["*"'])
def test_a_wrong_list_is_refused_by_the_options_name(served: Served, option: str, wrong: str) -> None:
    result = run("serve", option, wrong)
    assert result.exit_code == 1
    assert result.stderr == f"octavo: error: {option}: {wrong!r} is no list of texts in JSON\n"


def test_no_option_is_both_here_and_not_here() -> None:
    assert not {option.name for option in OPTIONS} & set(NOT_HERE)
    assert len({option.name for option in OPTIONS}) == len(OPTIONS)


def test_the_servers_defaults_in_the_help_are_its_own() -> None:
    named = {option.name: option for option in OPTIONS}
    for name, default in SERVER_DEFAULTS.items():
        assert getattr(ServerConfig(), named[name].param) == default
        assert f"[default: {default}]" in help_of(named[name])


def test_nothing_given_is_the_configurations_own_defaults(served: Served) -> None:
    assert run("serve").exit_code == 0
    assert served == [(EngineConfig(), ServerConfig())]


def test_options_reach_the_field_they_name(served: Served, tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    arguments = (
        "serve fake --host 0.0.0.0 --port 81 --max-model-len 100 --max-num-seqs 2 --max-num-batched-tokens 33 --block-size 32 "
        "--num-gpu-blocks-override 7 --kv-cache-memory-bytes 1GiB --gpu-memory-utilization 0.25 --no-enable-prefix-caching "
        "--kv-cache-dtype float32 --dtype bfloat16 --served-model-name a --served-model-name b --api-key k --seed 5 --threads 1 "
        f"--executor reference --isa avx2 --max-queue 9 --kv-tier-policy swap --enforce-eager --disable-log-stats --chat-template {template}"
    )
    result = run(*arguments.split())
    assert result.exit_code == 0, result.stderr
    [(engine, server)] = served
    assert engine == EngineConfig(
        model="fake", executor="reference", dtype="bfloat16", kv_cache_dtype="float32", block_size=32, max_model_len=100,
        max_num_seqs=2, max_num_batched_tokens=33, num_gpu_blocks_override=7, kv_cache_memory_bytes=2**30,
        gpu_memory_utilization=0.25, enable_prefix_caching=False, seed=5, num_threads=1, isa="avx2", max_queue=9, kv_tier_policy="swap",
    )  # fmt: skip
    assert server == ServerConfig(
        host="0.0.0.0", port=81, served_model_names=("a", "b"), api_keys=("k",), chat_template=template
    )


def test_tiers_come_from_the_command_line_or_the_file(served: Served, tmp_path: Path) -> None:
    path = tmp_path / "o.toml"
    path.write_text('kv-tier = ["ram:1GiB", "disk:/a,b,2.5TiB"]')
    assert run("serve", "--kv-tier", "ram:2MiB", "--kv-tier", "disk:/x:y,64GiB").exit_code == 0
    assert run("serve", "--config", str(path)).exit_code == 0
    path.write_text('kv-tier = "ram:1GiB"')
    assert run("serve", "--config", str(path)).exit_code == 0
    assert [engine.kv_tiers for engine, _ in served] == [
        ("ram:2MiB", "disk:/x:y,64GiB"),
        ("ram:1GiB", "disk:/a,b,2.5TiB"),
        ("ram:1GiB",),
    ]


def test_a_tier_without_a_unit_is_an_error_of_one_line() -> None:
    result = run("serve", "fake", "--kv-tier", "ram:4")
    assert result.exit_code == 1
    assert result.stderr.startswith("octavo: error: kv_tier 'ram:4' has the size '4'; it may be ram:SIZE or disk:PATH")
    assert result.stderr.count("\n") == 1


def test_the_command_line_wins_over_the_file(served: Served, tmp_path: Path) -> None:
    path = tmp_path / "o.toml"
    path.write_text(
        'model = "fake"\nport = 81\nmax-num-seqs = 2\nenable-prefix-caching = false\napi-key = "k"\nchat-template = "t"\n'
    )
    assert run("serve", "--config", str(path), "--max-num-seqs", "3").exit_code == 0
    [(engine, server)] = served
    assert (engine.model, engine.max_num_seqs, engine.enable_prefix_caching) == ("fake", 3, False)
    assert server == ServerConfig(port=81, api_keys=("k",), chat_template=Path("t"))


def test_the_model_may_be_named_as_an_option(served: Served, tmp_path: Path) -> None:
    path = tmp_path / "o.toml"
    path.write_text('model = "from-file"')
    run("serve", "--model", "fake", "--max-model-len", "2k")
    run("serve", "fake", "--model", "fake")
    run("serve", "--config", str(path), "--model", "fake")
    assert [engine.model for engine, _ in served] == ["fake"] * 3
    assert served[0][0].max_model_len == 2000
    result = run("serve", "a", "--model", "b")
    assert (result.exit_code, len(served)) == (2, 3)
    assert "two models are given, a and b" in result.stderr


def test_a_wrong_file_is_an_error_of_one_line(tmp_path: Path) -> None:
    path = tmp_path / "o.toml"
    path.write_text("max-num-seq = 2")
    result = run("serve", "--config", str(path))
    assert result.exit_code == 1
    assert result.stderr == f"octavo: error: {path}: there is no option 'max-num-seq'; did you mean max-num-seqs?\n"


def test_the_key_comes_from_the_environment_unless_given(served: Served) -> None:
    run("serve", environment={"OCTAVO_API_KEY": "from-environment"})
    run("serve", "--api-key", "given", environment={"OCTAVO_API_KEY": "from-environment"})
    assert [server.api_keys for _, server in served] == [("from-environment",), ("given",)]


def test_an_empty_key_in_the_environment_starts_nothing(served: Served) -> None:
    result = run("serve", environment={"OCTAVO_API_KEY": ""})
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert not served


def test_the_administrators_key_comes_from_the_environment_unless_given(served: Served) -> None:
    run("serve")
    run("serve", environment={"OCTAVO_ADMIN_API_KEY": "from-environment"})
    run("serve", "--admin-api-key", "given", environment={"OCTAVO_ADMIN_API_KEY": "from-environment"})
    assert [server.admin_api_key for _, server in served] == [None, "from-environment", "given"]


def test_the_key_is_never_printed(served: Served) -> None:
    for arguments in (
        ["serve", "--help"],
        ["serve", "--port", "x", "--api-key", "hush-hush"],
        ["serve", "--api-key", " hush-hush"],
        ["serve", "--admin-api-key", " hush-hush"],
        ["serve", "--admin-api-key", "hush-hush"],
    ):
        environment = {"OCTAVO_API_KEY": "hush-hush", "OCTAVO_ADMIN_API_KEY": "hush-hush"}
        result = run(*arguments, environment=environment)
        assert "hush-hush" not in result.output


def test_isa_comes_from_the_environment_unless_given(served: Served) -> None:
    run("serve", environment={"OCTAVO_ISA": "plain"})
    run("serve", "--isa", "avx2", environment={"OCTAVO_ISA": "plain"})
    assert [engine.isa for engine, _ in served] == ["plain", "avx2"]


@pytest.mark.parametrize("name", sorted(NOT_HERE))
def test_options_of_vllm_that_are_not_here_are_refused_by_name(name: str) -> None:
    flag = f"--{name}" if len(name) > 2 else f"-{name}"
    result = run("serve", flag, "1")
    assert result.exit_code == 2
    assert f"{flag} is an option of vLLM that octavo does not have: " in result.stderr
