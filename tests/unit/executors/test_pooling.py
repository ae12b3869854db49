"""Vectors of prompts: each executor against numpy and the reference, and bit for bit against itself in other company."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from octavo import _native
from octavo.core.block import SeqId
from octavo.executors.cpu import CpuExecutor
from octavo.executors.fake import HIDDEN_SIZE, FakeExecutor, hidden_of
from octavo.executors.pooling import FAILURE, vector_of
from octavo.executors.reference import ReferenceExecutor
from octavo.pooling_params import Pooling, PoolingParams
from octavo.program import ops
from octavo.program.trace import ProgramBuilder
from octavo.sampling_params import SamplingParams
from support.drive import Driver
from support.goldens import NAMES, golden_parameters, load_golden
from support.quantised import QuantisedSource
from support.sources import dict_source, random_parameters
from support.tiny_models import tiny_llama

NUM_BLOCKS = 160
SIZES: dict[str, Any] = {"num_blocks": NUM_BLOCKS, "block_size": 16, "max_num_seqs": 40, "max_model_len": 512}
F32_TOLERANCE = 2e-5  # of hidden states of about 1: float32 sums in another order through every layer
Vector = npt.NDArray[np.float32]


def sampling(pooling: Pooling, *, normalize: bool = False, dimensions: int | None = None) -> SamplingParams:
    return SamplingParams(max_tokens=0, pooling=PoolingParams(pooling, dimensions, normalize))


def embed(
    executor: Any,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    *,
    chunk: Callable[[], int] | int | None = None,
    company: Sequence[Sequence[int]] = (),
    block_seed: int | None = None,
    num_groups: int = 1,
) -> list[Vector]:
    """All prompts in each step, and with them others that draw, from the first step to the last."""
    driver = Driver(executor, block_size=16, num_blocks=NUM_BLOCKS, num_groups=num_groups, block_seed=block_seed)
    others = [driver.add(each) for each in company]
    pooled = [driver.add(each, params) for each in prompts]
    found: dict[SeqId, bytes] = {}
    while len(found) < len(pooled):
        size = chunk() if callable(chunk) else chunk
        live = [seq_id for seq_id in pooled if seq_id not in found]
        missing = {s: len(driver.tokens[s]) - driver.rows[s].computed for s in [*others, *live]}
        counts = {s: count if s in others else min(count, size or count) for s, count in missing.items()}
        output = driver.step(counts, num_samples=dict.fromkeys(pooled, 0))
        assert not output.failed
        found |= output.embeddings
    for seq_id in [*others, *pooled]:
        driver.remove(seq_id)
    return [np.frombuffer(found[seq_id], "<f4") for seq_id in pooled]


def random_prompts(lengths: Sequence[int], vocab_size: int = 97, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab_size, length).tolist() for length in lengths]


def cpu(program: ops.Program, source: Any, **options: Any) -> CpuExecutor:
    return CpuExecutor(
        program=program, source=source, **({"max_num_batched_tokens": 512, "num_threads": 1} | SIZES | options)
    )


def cpu_f32(program: ops.Program, source: Any, **options: Any) -> CpuExecutor:
    return cpu(program, source, dtype="float32", kv_dtype="float32", **options)


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("name", NAMES)
def test_the_cpu_is_near_the_reference_on_every_family(name: str, pooling: Pooling) -> None:
    golden = load_golden(name)
    source = dict_source(golden_parameters(name))
    groups = len(golden.program.kv_groups)
    prompts = [prompt[:40] for prompt in golden.prompts]
    expected = embed(
        ReferenceExecutor(program=golden.program, source=source, **SIZES),
        prompts,
        sampling(pooling),
        num_groups=groups,
    )
    found = embed(cpu_f32(golden.program, source), prompts, sampling(pooling), num_groups=groups)
    for a, b in zip(found, expected, strict=True):
        assert len(a) == golden.program.hidden_size
        np.testing.assert_allclose(a, b, rtol=0, atol=F32_TOLERANCE * max(1.0, np.abs(b).max()))


def test_the_reference_pools_what_the_head_multiplies() -> None:
    """The head is known, so its logits can be made from the last token's vector again."""
    program, arrays = tiny_llama(gain=2.0)
    executor = ReferenceExecutor(program=program, source=dict_source(arrays), keep_logits=True, **SIZES)
    (prompt,) = random_prompts((21,))
    (last,) = embed(executor, [prompt], sampling("last"))
    driver = Driver(executor, block_size=16, num_blocks=NUM_BLOCKS)
    row = driver.add(prompt)
    driver.step({row: len(prompt)})
    np.testing.assert_allclose(arrays["head.weight"] @ last, driver.logits[row][0], rtol=0, atol=1e-5)


def test_the_mean_is_that_of_every_tokens_state() -> None:
    program, arrays = tiny_llama()
    executor = ReferenceExecutor(program=program, source=dict_source(arrays), **SIZES)
    (prompt,) = random_prompts((19,))
    states = [embed(executor, [prompt[: end + 1]], sampling("last"))[0] for end in range(len(prompt))]
    (mean,) = embed(executor, [prompt], sampling("mean"))
    np.testing.assert_allclose(mean, np.mean(np.array(states, np.float64), axis=0), rtol=1e-6)


def quantised() -> tuple[ops.Program, Any]:
    program, arrays = tiny_llama(gain=2.0, hidden_size=64, intermediate_size=128)
    return program, QuantisedSource(arrays, {"": "Q4_0"})


@pytest.mark.parametrize("isa", _native.available_isas())
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_a_vectors_bits_depend_on_its_prompt_only(isa: str, pooling: Pooling) -> None:
    program, source = quantised()
    prompts = random_prompts((1, 3, 16, 65, 130, 200))  # the head takes 64 rows at a time
    params = sampling(pooling, normalize=True)
    alone = [embed(cpu(program, source, isa=isa), [prompt], params)[0].tobytes() for prompt in prompts]
    assert len(set(alone)) == len(prompts)
    together = embed(cpu(program, source, isa=isa), prompts, params)
    crowd = embed(
        cpu(program, source, isa=isa, num_threads=3),
        prompts,
        params,
        company=random_prompts((1, 9, 40), seed=5),
        block_seed=3,
        chunk=cycle([7, 1, 64, 3, 90, 5]).__next__,
    )
    in_ones = embed(cpu(program, source, isa=isa, num_threads=2), prompts[:4], params, chunk=1)
    assert [vector.tobytes() for vector in together] == alone
    assert [vector.tobytes() for vector in crowd] == alone
    assert [vector.tobytes() for vector in in_ones] == alone[:4]


def test_rows_that_draw_are_not_moved_by_rows_that_are_pooled() -> None:
    program, source = quantised()
    driver = Driver(cpu(program, source, keep_logits=True), block_size=16, num_blocks=NUM_BLOCKS)
    a, b = random_prompts((30, 12), seed=4)
    alone = driver.generate([a, b], max_tokens=4)
    rows = [driver.add(a), driver.add(b)]
    for prompt in random_prompts((70, 5, 33, 20), seed=9):
        pooled = driver.add(prompt, sampling("mean"))
        counts = {s: len(driver.tokens[s]) - driver.rows[s].computed for s in rows}
        output = driver.step({pooled: len(prompt)} | counts, num_samples={pooled: 0})
        assert list(output.embeddings) == [pooled]
        driver.remove(pooled)
    for row, expected, prompt in zip(rows, alone, (a, b), strict=True):
        assert driver.tokens[row][len(prompt) :] == expected.token_ids
        for mine, theirs in zip(driver.logits[row], expected.logits, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("make", [cpu_f32, lambda p, s: ReferenceExecutor(program=p, source=s, **SIZES)])
def test_a_row_that_comes_again_begins_anew(make: Callable[..., Any]) -> None:
    """As after a preemption: what was summed of the row before is forgotten."""
    program, arrays = tiny_llama()
    executor = make(program, dict_source(arrays))
    (prompt,) = random_prompts((50,))
    (expected,) = embed(executor, [prompt], sampling("mean"))
    driver = Driver(executor, block_size=16, num_blocks=NUM_BLOCKS)
    first = driver.add(prompt, sampling("mean"))
    assert not driver.step({first: 33}).embeddings
    driver.remove(first)
    again = driver.add(prompt, sampling("mean"))
    assert not driver.step({again: 20}).embeddings
    output = driver.step({again: 30}, num_samples={again: 0})
    assert output.embeddings == {again: expected.tobytes()}


def test_a_state_that_is_not_finite_ends_that_row_alone() -> None:
    program, arrays = tiny_llama()
    arrays["embed.weight"][5] = np.nan
    for executor in (
        cpu_f32(program, dict_source(arrays)),
        ReferenceExecutor(program=program, source=dict_source(arrays), **SIZES),
    ):
        driver = Driver(executor, block_size=16, num_blocks=NUM_BLOCKS)
        bad, good = driver.add([1, 5, 2], sampling("mean")), driver.add([1, 4, 2], sampling("mean"))
        output = driver.step({bad: 3, good: 3}, num_samples={bad: 0, good: 0})
        assert output.failed == {bad: FAILURE}
        assert list(output.embeddings) == [good]


def test_sums_that_are_not_there_are_refused_before_anything_runs() -> None:
    program, source = quantised()
    executor = cpu(program, source)
    rows = _native.StepRows(np.ones((1, 600), np.int32), np.array([600], np.int32), [np.zeros((1, 64), np.int32)], 16)
    step: dict[str, Any] = {
        "drawing": executor._drawing,
        "rows": rows,
        "row_ids": [0],
        "num_computed_tokens": [0],
        "num_scheduled_tokens": [4],
        "first_write": [0],
        "num_samples": [0],
        "prompt_queries": np.zeros((0, 3), np.int32),
        "masks": None,
        "mask_of": [],
        "logits": None,
    }
    width = executor._runner.hidden_size
    for pool, shape, words in (
        ([0, 5, 0], (1, width), "not in the step"),
        ([-1, 2, 0], (1, width), "not in the step"),
        ([0, 2, 1], (1, width), "no such sum"),
        ([0, 2, 0], (1, width + 1), "a column a column"),
        ([0, 2], (1, width), r"\[n, 3\]"),
    ):
        with pytest.raises(ValueError, match=words):
            executor._runner.run(**step, pools=np.array([pool], np.int32), sums=np.zeros(shape))


def test_a_program_without_a_head_shows_no_hidden_state() -> None:
    b = ProgramBuilder(vocab_size=8, embedding_size=8, num_kv_heads=1, head_dim=8, max_model_len=64)
    x = b.embed("embed.weight")
    b.write_kv(0, x, x)
    a = b.attend(x, 0, num_heads=1, scale=0.3)
    b.output(b.select_rows(a))
    program = b.finish()
    assert program.hidden is None
    assert program.hidden_size == 0
    executor = cpu(program, dict_source(random_parameters(program, 0)))
    assert executor._runner.hidden_size == 0


# The fake executor


def fake() -> FakeExecutor:
    return FakeExecutor(vocab_size=97, num_blocks=NUM_BLOCKS, block_size=16)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_the_fakes_vectors_are_of_the_whole_history_and_know_no_chunks(pooling: Pooling) -> None:
    prompts = random_prompts((1, 15, 40))
    whole = embed(fake(), prompts, sampling(pooling))
    cut = embed(fake(), prompts, sampling(pooling), chunk=7, company=random_prompts((3, 20), seed=1))
    assert [vector.tobytes() for vector in whole] == [vector.tobytes() for vector in cut]
    assert all(len(vector) == HIDDEN_SIZE for vector in whole)
    changed = [[1 + prompts[2][0], *prompts[2][1:]]]
    assert not np.array_equal(embed(fake(), changed, sampling(pooling))[0], whole[2])


def test_the_fake_reads_through_its_tables() -> None:
    assert hidden_of(0) != hidden_of(1)
    driver = Driver(fake(), block_size=16, num_blocks=NUM_BLOCKS)
    prompt = random_prompts((20,))[0]
    first = driver.add(prompt, sampling("last"))
    expected = driver.step({first: 20}, num_samples={first: 0}).embeddings[first]
    wrong = driver.add([5] * 16)
    driver.step({wrong: 16})
    table = [driver.rows[wrong].tables[0][0]]
    misled = driver.add(prompt, sampling("last"), tables=[table], num_computed_tokens=16)
    assert driver.step({misled: 4}, num_samples={misled: 0}).embeddings[misled] != expected


# The vector itself


def test_a_vector_is_cut_then_brought_to_length_one() -> None:
    values = [3.0, 4.0, 12.0]
    assert floats(vector_of(values, PoolingParams(normalize=False))) == values
    assert floats(vector_of(values, PoolingParams(dimensions=2))) == pytest.approx([0.6, 0.8])
    whole = floats(vector_of(values, PoolingParams()))
    assert math.hypot(*whole) == pytest.approx(1.0, abs=1e-7)
    assert floats(vector_of([0.0, 0.0], PoolingParams())) == [0.0, 0.0]
    for wrong in (math.nan, math.inf, -math.inf):
        assert vector_of([1.0, wrong], PoolingParams()) is None
    assert vector_of([1.0, 2.0], replace(PoolingParams(), normalize=False)) == struct.pack("<2f", 1.0, 2.0)


def floats(vector: bytes | None) -> list[float]:
    assert vector is not None
    return list(struct.unpack(f"<{len(vector) // 4}f", vector))
