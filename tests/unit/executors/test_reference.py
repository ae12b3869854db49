"""The reference executor against transformers' goldens, against itself in other company, and its blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.core.block import BlockId
from octavo.errors import ModelFileError
from octavo.executors.reference import ReferenceExecutor
from octavo.executors.reference_ops import attend_token, round_keys, round_values, run_row_op
from octavo.program import ops
from octavo.program.trace import ProgramBuilder
from octavo.sampling.reference import log_softmax
from octavo.sampling_params import SamplingParams
from support.drive import GREEDY, Driver, generate
from support.goldens import NAMES, golden_parameters, load_golden
from support.sources import dict_source
from support.tiny_models import tiny_llama

LOGIT_TOLERANCE = 1e-4  # float32 sums in another order, logits of up to 20
BLOCK_SIZE = 16


def make_executor(program: ops.Program, parameters: dict[str, Any], **options: Any) -> ReferenceExecutor:
    defaults = {"num_blocks": 64, "block_size": BLOCK_SIZE, "max_num_seqs": 8, "max_model_len": 256}
    return ReferenceExecutor(program=program, source=dict_source(parameters), keep_logits=True, **(defaults | options))


@pytest.fixture(scope="module")
def tiny() -> tuple[ops.Program, dict[str, Any]]:
    return tiny_llama(gain=3.0)


def make_driver(tiny: tuple[ops.Program, dict[str, Any]], **options: Any) -> Driver:
    return Driver(make_executor(*tiny, **options), block_size=BLOCK_SIZE, num_blocks=64)


@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_are_those_of_transformers(name: str) -> None:
    golden = load_golden(name)
    executor = make_executor(golden.program, golden_parameters(name), num_blocks=128)
    driver = Driver(
        executor, block_size=BLOCK_SIZE, num_blocks=128, num_groups=len(golden.program.kv_groups), block_seed=1
    )
    results = driver.generate(golden.prompts, max_tokens=32, chunk=37)
    assert [result.token_ids for result in results] == golden.token_ids


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(name: str) -> None:
    golden = load_golden(name)
    executor = make_executor(golden.program, golden_parameters(name))
    num_groups = len(golden.program.kv_groups)
    driver = Driver(executor, block_size=BLOCK_SIZE, num_blocks=64, num_groups=num_groups)
    histories = [golden.history(place) for place in range(len(golden.places))]
    results = driver.generate(histories, max_tokens=1, together=False)
    found = np.stack([result.logits[0] for result in results])
    assert np.abs(golden.logits).max() > 4.0  # not tiny: the tolerance means something
    np.testing.assert_allclose(found, golden.logits, rtol=0.0, atol=LOGIT_TOLERANCE)


@pytest.mark.parametrize(
    "options", [{"chunk": 1}, {"chunk": 16}, {"chunk": 37}, {"together": False}, {"block_seed": 3}]
)
def test_results_do_not_depend_on_chunks_company_or_blocks(tiny: Any, options: dict[str, Any]) -> None:
    generator = np.random.default_rng(0)
    prompts = [generator.integers(0, 97, length).tolist() for length in (1, 15, 16, 17, 50, 90)]
    sampling = [SamplingParams(temperature=0.0 if i % 2 else 0.9) for i in range(len(prompts))]

    def run(**how: Any) -> list[Any]:
        return generate(
            make_executor(*tiny), prompts, max_tokens=8, block_size=BLOCK_SIZE, num_blocks=64, sampling=sampling, **how
        )

    for expected, found in zip(run(), run(**options), strict=True):
        assert found.token_ids == expected.token_ids
        assert np.array_equal(found.logits, expected.logits)


def test_results_do_not_depend_on_the_block_size(tiny: Any) -> None:
    prompt = list(range(40))
    results = [
        generate(make_executor(*tiny, block_size=size), [prompt], max_tokens=8, block_size=size, num_blocks=64)[0]
        for size in (1, 4, 16, 64)
    ]
    for result in results[1:]:
        assert np.array_equal(result.logits, results[0].logits)


def test_a_wrong_block_table_fails_the_row_and_no_other(tiny: Any) -> None:
    driver = make_driver(tiny)
    good = driver.add([1, 2, 3])
    wrong = driver.add([4, 5, 6], tables=[[BlockId(40)]], num_computed_tokens=2)  # nobody wrote positions 0 and 1
    output = driver.step({good: 3, wrong: 1})
    assert set(output.failed) == {wrong}
    assert "NaN" in output.failed[wrong]
    alone = generate(make_executor(*tiny), [[1, 2, 3]], max_tokens=1, block_size=BLOCK_SIZE, num_blocks=64)
    assert driver.tokens[good][3:] == alone[0].token_ids


def test_a_released_block_reads_as_nan_until_written_again(tiny: Any) -> None:
    driver = make_driver(tiny)
    a = driver.add(list(range(20)))
    driver.step({a: 20})
    block = driver.rows[a].tables[0][0]
    payload = driver.executor.read_block(block)
    assert len(payload) == driver.executor.info.kv_bytes_per_block == tiny[0].kv_bytes_per_block(BLOCK_SIZE, 4)
    driver.executor.release_blocks([block])
    assert np.isnan(np.frombuffer(driver.executor.read_block(block), np.float32)).all()
    assert set(driver.step({a: 1}).failed) == {a}


def test_int8_stores_what_the_rounded_numbers_stand_for(tiny: Any) -> None:
    payloads = []
    for kv_dtype in ("float32", "int8"):
        driver = make_driver(tiny, kv_dtype=kv_dtype)
        a = driver.add(list(range(16)))
        driver.step({a: 16})
        payloads.append(np.frombuffer(driver.executor.read_block(driver.rows[a].tables[0][0]), np.float32))
        assert driver.executor.info.kv_dtype == kv_dtype
    shape = driver.executor._block_shape
    exact, stored = (payload.reshape(shape)[:, 0] for payload in payloads)  # the first layer read nothing rounded
    assert not np.array_equal(exact, stored)
    assert np.array_equal(stored[0], np.stack([round_keys(each) for each in exact[0]]))
    assert np.array_equal(stored[1], np.stack([round_values(each) for each in exact[1]]))


def test_a_block_read_and_written_elsewhere_serves_as_well(tiny: Any) -> None:
    driver = make_driver(tiny)
    a = driver.add(list(range(20)))
    driver.step({a: 20})
    first = driver.tokens[a][20]
    driver.executor.write_block(BlockId(50), driver.executor.read_block(driver.rows[a].tables[0][0]))
    driver.executor.release_blocks([driver.rows[a].tables[0][0]])
    b = driver.add(list(range(20)), tables=[[BlockId(50)]], num_computed_tokens=16)
    driver.step({b: 4})
    assert driver.tokens[b][20] == first
    assert np.array_equal(driver.logits[a][0], driver.logits[b][0])
    with pytest.raises(ValueError, match="bytes"):
        driver.executor.write_block(BlockId(50), b"short")
    with pytest.raises(ValueError, match="block 64 of 64"):
        driver.executor.write_block(BlockId(64), b"")


def test_copies_read_every_source_before_they_write_a_target(tiny: Any) -> None:
    driver = make_driver(tiny)
    executor = driver.executor
    size = executor.info.kv_bytes_per_block
    one, two = (np.full(size // 4, value, np.float32).tobytes() for value in (1.0, 2.0))
    executor.write_block(BlockId(50), one)
    executor.write_block(BlockId(51), two)
    driver._copies += [(BlockId(50), BlockId(51)), (BlockId(51), BlockId(50))]
    driver.step({driver.add([1]): 1})
    assert executor.read_block(BlockId(50)) == two
    assert executor.read_block(BlockId(51)) == one


def test_a_whole_prompt_hit_runs_its_last_token_without_writing(tiny: Any) -> None:
    driver = make_driver(tiny)
    a = driver.add(list(range(32)))
    driver.step({a: 32})
    tables = [list(table) for table in driver.rows[a].tables]
    before = [driver.executor.read_block(block) for block in tables[0]]
    b = driver.add(list(range(32)), tables=tables, num_computed_tokens=31)
    driver.step({b: 1}, first_write={b: 32})
    assert np.array_equal(driver.logits[a][0], driver.logits[b][0])
    assert [driver.executor.read_block(block) for block in tables[0]] == before


def test_samples_of_one_row_are_those_of_rows_with_their_own_sample_index(tiny: Any) -> None:
    sampling = SamplingParams(temperature=1.0, logprobs=3)
    driver = make_driver(tiny)
    parent = driver.add([5, 6, 7], sampling, seed=11)
    together = driver.step({parent: 3}, num_samples={parent: 4})
    rows = [driver.add([5, 6, 7], sampling, seed=11, sample_index=i) for i in range(4)]
    apart = driver.step(dict.fromkeys(rows, 3))
    assert list(together.token_ids) == list(apart.token_ids)
    assert len(set(together.token_ids)) > 1
    assert together.logprobs == apart.logprobs
    assert set(together.logprobs) == {0, 1, 2, 3}
    child = driver.fork(parent, sample_index=1, last_token=together.token_ids[1])
    driver.step({child: 1, rows[1]: 1})
    assert driver.tokens[child] == driver.tokens[rows[1]]


def test_logprobs_of_the_prompt_are_those_of_drawing_there(tiny: Any) -> None:
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    driver = make_driver(tiny)
    a = driver.add(prompt, GREEDY)
    first = driver.step({a: 5}, prompt_logprobs={a: 2})
    second = driver.step({a: 3}, prompt_logprobs={a: 2})
    entries = [*first.prompt_logprobs[a], *second.prompt_logprobs[a]]
    assert [entry.token_id for entry in entries] == prompt[1:]
    for position, entry in enumerate(entries):
        b = driver.add(prompt[: position + 1])
        driver.step({b: position + 1})
        values = log_softmax(driver.logits[b][0])
        assert entry.logprob == values[entry.token_id]
        assert entry.top[0] == (int(np.argmax(values)), float(values.max()))
        assert len(entry.top) == 2


def test_end_tokens_are_masked_until_min_tokens_were_sampled(tiny: Any) -> None:
    driver = make_driver(tiny)
    plain = driver.add([1, 2, 3])
    driver.step({plain: 3})
    best = driver.tokens[plain][3]
    masked = driver.add([1, 2, 3], SamplingParams(temperature=0.0, min_tokens=1), end_token_ids=[best])
    driver.step({masked: 3})
    assert driver.tokens[masked][3] != best


def test_a_plan_that_only_removes_runs_nothing_and_frees_the_row(tiny: Any) -> None:
    driver = make_driver(tiny, max_num_seqs=1)
    a = driver.add([1, 2])
    driver.step({a: 2})
    driver.remove(a)
    output = driver.step({})
    assert list(output.token_ids) == []
    assert driver.executor.last_logits == {}
    b = driver.add([1, 2])
    driver.step({b: 2})
    assert np.array_equal(driver.logits[a][0], driver.logits[b][0])


def test_a_step_inside_a_prompt_draws_nothing(tiny: Any) -> None:
    driver = make_driver(tiny)
    a = driver.add([1, 2, 3])
    assert list(driver.step({a: 2}).token_ids) == []
    assert driver.tokens[a] == [1, 2, 3]


def test_an_end_token_beyond_the_vocabulary_changes_nothing(tiny: Any) -> None:
    tokens = []
    for ends in ((), (97, 2**31 - 1)):
        driver = make_driver(tiny)
        row = driver.add([1, 2, 3], SamplingParams(temperature=0.0, min_tokens=4), end_token_ids=ends)
        assert not driver.step({row: 3}).failed
        tokens.append(driver.tokens[row])
    assert tokens[0] == tokens[1]


def test_nan_weights_fail_every_row_and_raise_nothing() -> None:
    program, parameters = tiny_llama()
    parameters["final_norm.weight"][3] = np.nan
    driver = make_driver((program, parameters))
    a, b = driver.add([1, 2]), driver.add([3])
    assert set(driver.step({a: 2, b: 1}).failed) == {a, b}


def test_a_parameter_of_the_wrong_shape_or_none_is_refused() -> None:
    program, parameters = tiny_llama()
    with pytest.raises(ModelFileError, match=r"final_norm.*\[65\].*\[64\]"):
        make_executor(program, parameters | {"final_norm.weight": np.ones(65, np.float32)})
    del parameters["final_norm.weight"]
    with pytest.raises(ModelFileError, match="final_norm"):
        make_executor(program, parameters)


def test_attention_is_a_dense_softmax() -> None:
    generator = np.random.default_rng(0)
    for num_heads, num_kv_heads, window, softcap, has_sinks, length in (
        (4, 4, None, None, False, 1),
        (6, 2, None, None, False, 33),
        (8, 1, 5, None, False, 40),
        (4, 2, 17, 10.0, False, 64),
        (4, 2, None, None, True, 20),
        (4, 2, 3, 5.0, True, 100),
    ):
        q = generator.standard_normal((num_heads, 8)).astype(np.float32)
        k = generator.standard_normal((length + 3, num_kv_heads, 8)).astype(np.float32)
        v = generator.standard_normal((length + 3, num_kv_heads, 8)).astype(np.float32)
        k[length:], v[length:] = np.nan, np.nan  # behind the token: must not be read
        sinks = generator.standard_normal(num_heads).astype(np.float32) if has_sinks else None
        op = ops.Attend("out", "q", 0, num_heads, 0.3, window, softcap, "sinks" if has_sinks else None)
        found = attend_token(op, q.reshape(-1), k, v, length - 1, sinks).reshape(num_heads, 8)
        first = 0 if window is None else max(0, length - window)
        for head in range(num_heads):
            kv_head = head // (num_heads // num_kv_heads)
            scores = k[first:length, kv_head].astype(np.float64) @ q[head] * 0.3
            if softcap is not None:
                scores = softcap * np.tanh(scores / softcap)
            weights = np.exp(scores)
            total = weights.sum() + (np.exp(np.float64(sinks[head])) if sinks is not None else 0.0)
            np.testing.assert_allclose(found[head], weights @ v[first:length, kv_head] / total, atol=1e-5)


def test_every_other_operation_does_what_its_description_says() -> None:
    generator = np.random.default_rng(1)
    x, y = (generator.standard_normal((3, 8)).astype(np.float32) for _ in range(2))
    w = generator.standard_normal((5, 8)).astype(np.float32)
    parameters = {"w": w, "n": w[0], "b": w[1], "g": w[2, :4], "e": w, "bias": w[:, 0].copy()}
    token_ids, positions = np.array([4, 0, 2], np.int32), np.array([0, 1, 3], np.int32)

    def run(op: Any, width: int = 8) -> Any:
        return run_row_op(op, {"x": x, "y": y}, parameters, token_ids, positions, width)

    def rms(a: Any) -> Any:
        return np.sqrt((a * a).mean(-1, keepdims=True) + 1e-5)

    centred = x - x.mean(-1, keepdims=True)
    silu = x / (1 + np.exp(-x))
    expected = {
        ops.Embed("o", "e"): w[token_ids],
        ops.AddPosition("o", "x", "e", 1): x + w[positions + 1],
        ops.RmsNorm("o", "x", "n", 1e-5): x / rms(x) * w[0],
        ops.RmsNorm("o", "x", "g", 1e-5): (x.reshape(3, 2, 4) / rms(x.reshape(3, 2, 4)) * w[2, :4]).reshape(3, 8),
        ops.LayerNorm("o", "x", "n", "b", 1e-5): centred / rms(centred) * w[0] + w[1],
        ops.Linear("o", "x", "w"): x @ w.T,
        ops.Linear("o", "x", "w", "bias"): x @ w.T + w[:, 0],
        ops.Slice("o", "x", 2, 5): x[:, 2:5],
        ops.Concat("o", ("x", "y")): np.concatenate([x, y], axis=1),
        ops.ActMul("o", "x", "y", "silu"): silu * y,
        ops.Activation("o", "x", "relu"): np.maximum(x, 0),
        ops.Add("o", "x", "y"): x + y,
        ops.Mul("o", "x", "y"): x * y,
        ops.Scale("o", "x", 3.0): 3 * x,
        ops.Softcap("o", "x", 2.0): 2 * np.tanh(x / 2),
    }
    for op, value in expected.items():
        np.testing.assert_allclose(run(op, value.shape[1]), value, rtol=1e-5, atol=1e-6, err_msg=str(op))
    at = np.array([[-1.0, 0.5, 2.0]], np.float32)  # published values of the Gaussian error linear unit
    for name, values in {"gelu": [-0.158655, 0.345731, 1.954500], "gelu_tanh": [-0.158808, 0.345714, 1.954598]}.items():
        found = run_row_op(ops.Activation("o", "x", name), {"x": at}, {}, token_ids, positions, 3)  # type: ignore[arg-type]
        np.testing.assert_allclose(found, [values], atol=2e-6)


def test_rope_turns_each_pair_by_its_angle_and_passes_the_rest() -> None:
    inv_freq = (1.0, 0.1)
    op = ops.Rope("o", "x", 6, 4, inv_freq, attention_factor=1.5)
    x = np.arange(24, dtype=np.float32).reshape(2, 12)
    positions = np.array([0, 7], np.int32)
    found = run_row_op(op, {"x": x}, {}, positions, positions, 12).reshape(2, 2, 6)
    heads = x.reshape(2, 2, 6)
    for t, position in enumerate(positions):
        turn = np.exp(1j * position * np.array(inv_freq)) * 1.5
        pairs = (heads[t, :, :2] + 1j * heads[t, :, 2:4]) * turn
        np.testing.assert_allclose(found[t, :, :2], pairs.real, rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(found[t, :, 2:4], pairs.imag, rtol=1e-5, atol=1e-4)
        assert np.array_equal(found[t, :, 4:], heads[t, :, 4:])


def test_two_kv_groups_have_their_own_tables_and_windows() -> None:
    def program(windows: tuple[int | None, ...]) -> ops.Program:
        b = ProgramBuilder(vocab_size=11, embedding_size=8, num_kv_heads=1, head_dim=8, max_model_len=64)
        x = b.embed("embed.weight")
        for layer, window in enumerate(windows):
            h = b.rms_norm(x, f"{layer}.norm", 1e-5)
            b.write_kv(layer, b.linear(h, f"{layer}.k.weight", 8), b.linear(h, f"{layer}.v.weight", 8))
            a = b.attend(b.linear(h, f"{layer}.q.weight", 8), layer, num_heads=1, scale=1.0, sliding_window=window)
            x = b.add(x, a)
        b.output(b.linear(b.select_rows(x), "head.weight", 11))
        return b.finish()

    from support.sources import random_parameters

    grouped, plain = program((None, 4, 4)), program((None, 60, 60))
    assert [group.layers for group in grouped.kv_groups] == [(0,), (1,), (2,)]
    parameters = random_parameters(grouped)
    found = {}
    for name, traced in (("grouped", grouped), ("plain", plain)):
        driver = Driver(make_executor(traced, parameters), block_size=BLOCK_SIZE, num_blocks=64, num_groups=3)
        found[name] = driver.generate([[1, 2, 3, 4], list(range(10))], max_tokens=1)
    assert np.array_equal(found["grouped"][0].logits, found["plain"][0].logits)  # inside the window: the same
    assert not np.array_equal(found["grouped"][1].logits, found["plain"][1].logits)
