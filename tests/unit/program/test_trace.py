"""The tracer: what it makes, and each mistake it refuses while it is being made."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from octavo.program import ops
from octavo.program.trace import ProgramBuilder, TraceError, group_layers
from support.tiny_models import tiny_llama


def builder() -> ProgramBuilder:
    return ProgramBuilder(vocab_size=11, embedding_size=8, num_kv_heads=1, head_dim=4, max_model_len=64)


def with_attention(b: ProgramBuilder) -> str:
    """One layer: the buffer of its attention, [tokens, 8]."""
    x = b.embed("embed.weight")
    b.write_kv(0, b.linear(x, "k", 4), b.linear(x, "v", 4))
    return b.attend(b.linear(x, "q", 8), 0, num_heads=2, scale=0.5)


def finished(b: ProgramBuilder, x: str) -> ops.Program:
    b.output(b.linear(b.select_rows(x), "head", b.vocab_size))
    return b.finish({"family": "test"})


def test_a_program_knows_its_buffers_parameters_and_groups() -> None:
    b = builder()
    program = finished(b, with_attention(b))
    assert [type(op).__name__ for op in program.ops] == [
        "Embed", "Linear", "Linear", "WriteKV", "Linear", "Attend", "SelectRows", "Linear", "Output",
    ]  # fmt: skip
    assert program.parameters == {"embed.weight": (11, 8), "k": (4, 8), "v": (4, 8), "q": (8, 8), "head": (11, 8)}
    written = [op.out for op in program.ops if not isinstance(op, ops.WriteKV | ops.Output)]
    assert sorted(written) == sorted(program.buffers)
    assert program.buffers[program.ops[-1].x] == 11
    assert program.kv_groups == (ops.KVGroup((0,)),)
    assert program.num_layers == 1
    assert program.kv_bytes_per_block(16, 2) == 2 * 16 * 4 * 2
    assert program.extra == {"family": "test"}


def test_every_operation_has_the_width_it_says() -> None:
    b = builder()
    x = b.embed("embed.weight")
    x = b.add_position(x, "positions", 66, offset=2)
    x = b.rms_norm(x, "head_norm", 1e-5, group=4)
    x = b.layer_norm(x, "ln.weight", "ln.bias", 1e-5)
    x = b.concat([b.slice(x, 0, 3), b.slice(x, 3, 8)])
    x = b.rope(x, (1.0, 0.5))
    b.write_kv(0, b.slice(x, 0, 4), b.slice(x, 4, 8))
    x = b.attend(x, 0, num_heads=2, scale=1.0, sliding_window=8, softcap=5.0, sinks="sinks")
    x = b.act_mul(b.activation(x, "gelu"), x, "silu")
    x = b.softcap(b.scale(b.mul(b.add(x, x), x), 2.0), 30.0)
    program = finished(b, x)
    assert program.parameters["positions"] == (66, 8)
    assert program.parameters["head_norm"] == (4,)
    assert program.parameters["sinks"] == (2,)
    assert {program.buffers[name] for name in program.buffers} == {8, 3, 5, 4, 11}
    assert program.kv_groups == (ops.KVGroup((0,), 8),)


MISTAKES: dict[str, tuple[Callable[[ProgramBuilder], object], str]] = {
    "unknown input": (lambda b: b.add("a", "b"), "read before it is written"),
    "widths differ": (lambda b: b.add(b.embed("e"), b.linear(b.embed("e"), "w", 4)), "columns"),
    "shapes differ": (lambda b: (b.embed("w"), b.linear(b.embed("w"), "w", 5)), r"\[11, 8\] and as \[5, 8\]"),
    "no width": (lambda b: b.linear(b.embed("e"), "w", 0), "out_width"),
    "slice outside": (lambda b: b.slice(b.embed("e"), 4, 9), "columns"),
    "slice empty": (lambda b: b.slice(b.embed("e"), 4, 4), "columns"),
    "norm groups": (lambda b: b.rms_norm(b.embed("e"), "n", 1e-5, group=3), "groups"),
    "rope too wide": (lambda b: b.rope(b.embed("e"), (1.0, 1.0, 1.0)), "rotary_dim"),
    "rope heads": (lambda b: b.rope(b.embed("e"), (1.0,), head_dim=3), "heads"),
    "kv width": (lambda b: b.write_kv(0, b.embed("e"), b.embed("e")), "KV heads"),
    "attend first": (lambda b: b.attend(b.embed("e"), 0, num_heads=2, scale=1.0), "before its write_kv"),
    "attend heads": (lambda b: b.attend(b.embed("e"), 0, num_heads=3, scale=1.0), "heads"),
    "written twice": (lambda b: (with_attention(b), with_attention(b)), "twice"),
    "selected twice": (lambda b: b.select_rows(b.select_rows(b.embed("e"))), "twice"),
    "rows mixed": (lambda b: b.add(b.select_rows(x := b.embed("e")), x), "selected"),
    "attend selected": (lambda b: b.rope(b.select_rows(b.embed("e")), (1.0,)), "after select_rows"),
    "output of all rows": (lambda b: b.output(b.linear(b.embed("e"), "w", 11)), "select_rows"),
    "output width": (lambda b: b.output(b.select_rows(b.embed("e"))), "vocabulary"),
    "after the output": (lambda b: (finished(b, with_attention(b)), b.embed("e")), "after the output"),
    "no output": (lambda b: (with_attention(b), b.finish()), "no output"),
    "unused buffer": (lambda b: (b.embed("e2"), finished(b, with_attention(b))), "never read"),
    "no attention": (lambda b: finished(b, b.embed("e")), "no attention"),
    "two windows": (
        lambda b: b.attend(with_attention(b), 0, num_heads=2, scale=1.0, sliding_window=4),
        "windows None and 4",
    ),
    "softcap": (lambda b: b.softcap(b.embed("e"), 0.0), "cap"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused(name: str) -> None:
    make, message = MISTAKES[name]
    with pytest.raises(TraceError, match=message):
        make(builder())


def test_layers_are_numbered_from_zero_without_holes() -> None:
    b = builder()
    x = b.embed("e")
    b.write_kv(1, b.slice(x, 0, 4), b.slice(x, 4, 8))
    x = b.attend(x, 1, num_heads=2, scale=1.0)
    with pytest.raises(TraceError, match=r"layers are \[1\]"):
        finished(b, x)


def test_sizes_of_nothing_are_refused() -> None:
    with pytest.raises(TraceError, match="head_dim is 0"):
        ProgramBuilder(vocab_size=1, embedding_size=1, num_kv_heads=1, head_dim=0, max_model_len=1)


def test_groups_hold_equally_many_layers_and_only_the_last_of_a_kind_fewer() -> None:
    def groups(*windows: int | None) -> list[tuple[tuple[int, ...], int | None]]:
        return [(group.layers, group.sliding_window) for group in group_layers(windows)]

    assert groups(None, None, None) == [((0, 1, 2), None)]
    assert groups(8, None, 8, None) == [((0, 2), 8), ((1, 3), None)]
    assert groups(None, 8, 8, 8, 8, 8, None) == [((0, 6), None), ((1, 2), 8), ((3, 4), 8), ((5,), 8)]


def test_a_traced_model_reads_only_what_was_written_before() -> None:
    program, _ = tiny_llama()
    written: set[str] = set()
    for op in program.ops:
        for field in ("x", "q", "k", "v", "a", "b", "gate", "up"):
            if not isinstance(op, ops.Embed) and hasattr(op, field):
                assert getattr(op, field) in written
        if hasattr(op, "out"):
            assert op.out not in written
            written.add(op.out)
