"""The cpu executor against the reference on whole small models, and bit for bit against itself in other company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo import _native
from octavo.core.block import BlockId
from octavo.engine.block_mover import tier_identity
from octavo.errors import ConfigError, ModelFileError
from octavo.executors.cpu import CpuExecutor
from octavo.executors.reference import ReferenceExecutor
from octavo.program import ops
from octavo.program.parameters import ParameterSource
from octavo.program.trace import ProgramBuilder
from octavo.sampling import reference as sampling_reference
from octavo.sampling_params import SamplingParams
from support.drive import Driver, generate
from support.goldens import NAMES, golden_parameters, load_golden
from support.quantised import QuantisedSource
from support.sources import dict_source, random_parameters
from support.tiny_models import tiny_llama

ISAS = _native.available_isas()
NUM_BLOCKS = 160
SIZES: dict[str, Any] = {"num_blocks": NUM_BLOCKS, "block_size": 16, "max_num_seqs": 40, "max_model_len": 512}

F32_TOLERANCE = 2e-4  # logits of up to 20; float32 sums in another order through every layer
GOLDEN_TOLERANCE = 3e-4  # the same, against transformers
Q4_TOLERANCE = 0.05  # of the logits' spread: activations are rounded to int8 in groups of 32, KV to bfloat16


def make(program: ops.Program, source: ParameterSource, **options: Any) -> CpuExecutor:
    defaults = {"max_num_batched_tokens": 512, "num_threads": 1, "keep_logits": True, **SIZES}
    return CpuExecutor(program=program, source=source, **(defaults | options))


def make_f32(program: ops.Program, source: ParameterSource, **options: Any) -> CpuExecutor:
    return make(program, source, dtype="float32", kv_dtype="float32", **options)


def run(executor: Any, prompts: list[list[int]], max_tokens: int = 6, **options: Any) -> list[Any]:
    return generate(executor, prompts, max_tokens=max_tokens, block_size=16, num_blocks=NUM_BLOCKS, **options)


def random_prompts(lengths: tuple[int, ...], vocab_size: int = 97, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab_size, length).tolist() for length in lengths]


def assert_logits_near(found: list[Any], expected: list[Any], tolerance: float) -> None:
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a.logits[0], b.logits[0], rtol=0, atol=tolerance)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "shape",
    [
        {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64},
        {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 80},
        {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 96},
        {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 128, "tie_word_embeddings": True},
        {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 256, "attention_bias": True, "mlp_bias": True},
        {"hidden_size": 40, "intermediate_size": 33, "num_attention_heads": 5, "num_key_value_heads": 5},
    ],
    ids=lambda s: "-".join(map(str, s.values())),
)
def test_float32_is_near_the_reference(isa: str, shape: dict[str, Any]) -> None:
    program, arrays = tiny_llama(gain=2.0, **shape)
    source = dict_source(arrays)
    prompts = random_prompts((1, 7, 31, 33, 150))
    expected = run(ReferenceExecutor(program=program, source=source, keep_logits=True, **SIZES), prompts)
    found = run(make_f32(program, source, isa=isa), prompts)
    assert_logits_near(found, expected, F32_TOLERANCE)
    assert [r.token_ids for r in found] == [r.token_ids for r in expected]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", NAMES)
def test_float32_is_near_transformers(isa: str, name: str) -> None:
    golden = load_golden(name)
    source = dict_source(golden_parameters(name))
    executor = make_f32(golden.program, source, isa=isa, max_model_len=256)
    num_groups = len(golden.program.kv_groups)
    results = run(executor, golden.prompts, max_tokens=32, num_groups=num_groups)
    assert [result.token_ids for result in results] == golden.token_ids
    histories = [golden.history(place) for place in range(len(golden.places))]
    executor = make_f32(golden.program, source, isa=isa, max_model_len=256)
    found = Driver(executor, block_size=16, num_blocks=NUM_BLOCKS, num_groups=num_groups)
    logits = np.stack([r.logits[0] for r in found.generate(histories, max_tokens=1, together=False)])
    np.testing.assert_allclose(logits, golden.logits, rtol=0, atol=GOLDEN_TOLERANCE)


def every_operation() -> tuple[ops.Program, dict[str, Any]]:
    """A program of two KV groups with every operation a Llama has not."""
    b = ProgramBuilder(vocab_size=97, embedding_size=48, num_kv_heads=2, head_dim=16, max_model_len=512)
    x = b.add_position(b.embed("embed.weight"), "positions.weight", 514, offset=2)
    for layer, (window, cap) in enumerate([(None, 4.0), (20, None), (None, None), (20, 3.0)]):
        at = f"layers.{layer}."
        h = b.layer_norm(x, at + "norm.weight", at + "norm.bias", 1e-5)
        qkv = b.linear(h, at + "qkv.weight", 128, at + "qkv.bias")
        q, k, v = b.slice(qkv, 0, 64), b.slice(qkv, 64, 96), b.slice(qkv, 96, 128)
        q = b.rope(b.rms_norm(q, at + "q_norm.weight", 1e-6, group=16), [1.0, 0.1, 0.01], attention_factor=1.1)
        k = b.rope(b.rms_norm(k, at + "k_norm.weight", 1e-6, group=16), [1.0, 0.1, 0.01], attention_factor=1.1)
        b.write_kv(layer, k, v)
        sinks = at + "sinks" if layer % 2 else None
        a = b.attend(q, layer, num_heads=4, scale=0.25, sliding_window=window, softcap=cap, sinks=sinks)
        x = b.add(x, b.linear(a, at + "o.weight", 48))
        left, right = b.activation(b.linear(x, at + "up.weight", 33), "gelu_tanh"), b.linear(x, at + "gate.weight", 33)
        h = b.mul(b.concat([left, b.scale(right, 0.5)]), b.concat([b.activation(right, "gelu"), left]))
        x = b.add(x, b.linear(h, at + "down.weight", 48, at + "down.bias"))
    x = b.layer_norm(b.select_rows(x), "final.weight", "final.bias", 1e-5)
    b.output(b.softcap(b.linear(x, "head.weight", 97), 30.0))
    program = b.finish()
    return program, random_parameters(program, 3, 1.5)


@pytest.mark.parametrize("isa", ISAS)
def test_every_operation_is_near_the_reference(isa: str) -> None:
    program, arrays = every_operation()
    assert len(program.kv_groups) == 2
    source = dict_source(arrays)
    prompts = random_prompts((1, 16, 33, 70))
    expected = run(ReferenceExecutor(program=program, source=source, keep_logits=True, **SIZES), prompts, num_groups=2)
    found = run(make_f32(program, source, isa=isa), prompts, num_groups=2, chunk=13)
    assert_logits_near(found, expected, F32_TOLERANCE)
    assert [r.token_ids for r in found] == [r.token_ids for r in expected]


def quantised(**overrides: Any) -> tuple[ops.Program, QuantisedSource]:
    """Each form at once: Q8_0 tied embedding, Q4_1, Q4_0, BF16, F16."""
    shape = {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2, "tie_word_embeddings": True}
    program, arrays = tiny_llama(gain=2.0, **(shape | overrides))
    kinds: Any = {"embed": "Q8_0", ".o.": "Q4_0", ".k.": "BF16", ".v.": "F16", "layers": "Q4_1"}
    return program, QuantisedSource(arrays, kinds)


@pytest.mark.parametrize("isa", ISAS)
def test_quantised_forms_are_near_the_reference(isa: str) -> None:
    program, source = quantised()
    prompts = random_prompts((1, 7, 31, 33, 150))
    expected = run(ReferenceExecutor(program=program, source=source, keep_logits=True, **SIZES), prompts, 1)
    executor = make(program, source, isa=isa)
    found = run(executor, prompts, 1)
    spread = np.std([r.logits[0] for r in expected])
    assert_logits_near(found, expected, Q4_TOLERANCE * 6 * float(spread))
    assert set(executor.info.weight_form.split("+")) == {"int4", "int8", "bf16"}
    assert executor.info.kv_dtype == "bfloat16"


W8A8_TOLERANCE = 0.15  # of the logits' spread: one scale a token and one a row of weights, in 2 layers of width 96


@pytest.mark.parametrize("isa", ISAS)
def test_weights_rounded_to_w8a8_are_near_the_reference_and_told_apart(isa: str) -> None:
    program, source = quantised()
    prompts = random_prompts((1, 7, 31, 33, 150))
    expected = run(ReferenceExecutor(program=program, source=source, keep_logits=True, **SIZES), prompts, 1)
    executor = make(program, source, isa=isa, quantization="w8a8")
    found = run(executor, prompts, 1)
    spread = np.std([r.logits[0] for r in expected])
    assert_logits_near(found, expected, W8A8_TOLERANCE * 6 * float(spread))
    assert executor.info.weight_form == "w8a8"
    assert executor.info.weight_bytes < sum(np.prod(s) for s in program.parameters.values()) * 1.25
    as_it_is = make(program, source, isa=isa)
    assert tier_identity(executor.info, 16) != tier_identity(as_it_is.info, 16)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_w8a8_is_the_same_model_on_every_instruction_set(num_threads: int) -> None:
    # Its products are equal to the bit; what is left is the rest of the model in float32.
    program, source = quantised()
    prompts = random_prompts((5, 40))
    found = [
        run(
            make(program, source, isa=isa, quantization="w8a8", kv_dtype="float32", num_threads=num_threads), prompts, 3
        )
        for isa in ISAS
    ]
    assert all([r.token_ids for r in each] == [r.token_ids for r in found[0]] for each in found)


def test_an_embedding_that_nobody_multiplies_with_stays_as_the_file_has_it() -> None:
    untied, source = quantised(tie_word_embeddings=False)
    assert make(untied, source, quantization="w8a8").info.weight_form == "w8a8+int8"


def test_more_columns_than_w8a8_sums_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.executors.cpu_program.MAX_W8A8_COLS", 64)  # a real one has 65,537
    program, source = quantised()
    with pytest.raises(ModelFileError, match=r"embed\.weight has 96 columns; w8a8 takes up to 64"):
        make(program, source, quantization="w8a8")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [{}, {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 40}], ids=str)
def test_int8_keys_and_values_are_near_a_reference_that_rounds_alike(isa: str, shape: dict[str, Any]) -> None:
    program, arrays = tiny_llama(gain=2.0, **shape)
    source = dict_source(arrays)
    prompts = random_prompts((1, 7, 31, 33, 150))
    exact, rounding = (
        run(ReferenceExecutor(program=program, source=source, keep_logits=True, kv_dtype=kind, **SIZES), prompts, 1)
        for kind in ("float32", "int8")
    )
    executor = make(program, source, isa=isa, dtype="float32", kv_dtype="int8")
    found = run(executor, prompts, 1)
    off, cost = (
        np.sqrt(np.mean([np.square(a.logits[0] - b.logits[0]) for a, b in zip(found, each, strict=True)]))
        for each in (rounding, exact)
    )
    # Where float32 sums in another order land on the other side of a rounding, the two part by a step of one value.
    assert off < 0.3 * cost
    assert [r.token_ids for r in found] == [r.token_ids for r in rounding]
    assert executor.info.kv_dtype == "int8"


def test_the_three_types_of_keys_and_values_have_different_names_in_a_tier() -> None:
    program, source = quantised()
    infos = [make(program, source, kv_dtype=kind).info for kind in ("bfloat16", "float32", "int8")]
    assert len({tier_identity(info, 16) for info in infos}) == 3
    half, whole = infos[2].kv_bytes_per_block, infos[0].kv_bytes_per_block
    assert half == program.kv_bytes_per_block(16, 1, 2) == whole * (16 + 2) / (2 * 16)  # heads of 16


FORMS = [
    ("float32", "float32"),
    ("bfloat16", "bfloat16"),
    ("auto", "bfloat16"),
    ("w8a8", "bfloat16"),
    ("auto", "int8"),
    ("w8a8", "int8"),
]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dtype", "kv_dtype"), FORMS)
@pytest.mark.parametrize(
    "how",
    [
        {"chunk": 1},
        {"chunk": 16},
        {"chunk": 37},
        {"together": False},
        {"block_seed": 5},
        {"num_threads": 2},
        {"num_threads": 3, "chunk": 50},
    ],
    ids=lambda how: "-".join(map(str, how)),
)
def test_company_chunks_blocks_and_threads_change_no_bit(
    isa: str, dtype: str, kv_dtype: str, how: dict[str, Any]
) -> None:
    program, source = quantised()
    prompts = random_prompts((1, 15, 16, 17, 64, 65, 300))
    sampling = [SamplingParams(temperature=0.9 if i % 2 else 0.0) for i in range(len(prompts))]
    form: Any = {"quantization": "w8a8"} if dtype == "w8a8" else {"dtype": dtype}
    options: Any = {**form, "kv_dtype": kv_dtype, "isa": isa}
    expected = run(make(program, source, **options), prompts, sampling=sampling)
    options["num_threads"] = how.get("num_threads", 1)
    driving = {name: value for name, value in how.items() if name != "num_threads"}
    found = run(make(program, source, **options), prompts, sampling=sampling, **driving)
    for a, b in zip(found, expected, strict=True):
        assert a.token_ids == b.token_ids
        assert np.array_equal(a.logits, b.logits)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8"])
def test_alone_and_among_31_others_are_the_same_bits(isa: str, kv_dtype: str) -> None:
    program, source = quantised()
    prompts = random_prompts(tuple(range(1, 33)))
    executor = make(program, source, isa=isa, num_threads=2, max_num_batched_tokens=1024, kv_dtype=kv_dtype)
    driver = Driver(executor, block_size=16, num_blocks=NUM_BLOCKS)
    crowd = driver.generate(prompts, max_tokens=8)
    assert max(len(output.token_ids) for output in driver.outputs) == 32
    for index in (0, 15, 31):
        alone = run(make(program, source, isa=isa, kv_dtype=kv_dtype), [prompts[index]], 8)[0]
        assert alone.token_ids == crowd[index].token_ids
        assert np.array_equal(alone.logits, crowd[index].logits)


def test_the_forced_isa_is_the_one_that_runs() -> None:
    program, source = quantised()
    for isa in ISAS:
        assert make(program, source, isa=isa).info.isa == isa
    assert make(program, source).info.isa == ISAS[0]
    with pytest.raises(ConfigError, match=r"'sse9'.*plain"):
        make(program, source, isa="sse9")


@pytest.mark.parametrize("block_size", [1, 8, 24])
def test_block_sizes_that_are_no_multiples_of_16_are_refused(block_size: int) -> None:
    program, source = quantised()
    with pytest.raises(ConfigError, match=f"block_size is {block_size}; the cpu executor takes multiples of 16"):
        make(program, source, block_size=block_size)


def test_a_parameter_of_another_shape_is_refused() -> None:
    program, arrays = tiny_llama()
    arrays["layers.0.q.weight"] = arrays["layers.0.q.weight"][:-1]
    with pytest.raises(ModelFileError, match=r"layers.0.q.weight is \[63, 64\] in the file"):
        make(program, dict_source(arrays))


def test_packing_reports_progress_and_shares_tied_weights() -> None:
    program, source = quantised()
    seen: list[float] = []
    executor = make(program, source, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.0)
    untied, its_source = quantised(tie_word_embeddings=False)
    head_bytes = 7 * 16 * 96  # at least the values
    assert make(untied, its_source).info.weight_bytes > executor.info.weight_bytes + head_bytes


def test_a_layer_is_four_products_and_the_last_one_runs_on_the_wanted_rows() -> None:
    program, source = quantised()
    executor = make(program, source)
    to_attend = ["linear x3", "rows", "attend"]
    layer = ["own rows", "linear+ x1", "own rows", "gated x1", "own rows", "linear+ x1", "own rows"]
    last = ["rows", "linear+ x1", "own rows", "gated x1", "own rows", "linear+ x1", "own rows", "linear x1"]
    assert executor._lowered.native.stages == [
        *("rows", *to_attend, *layer, *to_attend),
        *(f"head: {stage}" for stage in last),
    ]


def test_products_of_different_forms_or_with_another_reader_stay_apart() -> None:
    program, arrays = tiny_llama(num_hidden_layers=1)
    source = QuantisedSource(arrays, {"gate": "Q4_1", "up": "Q4_0", "layers": "Q8_0"})
    stages = make(program, source)._lowered.native.stages
    assert "head: linear x2" in stages
    assert not any("gated" in stage for stage in stages)

    b = ProgramBuilder(vocab_size=97, embedding_size=48, num_kv_heads=2, head_dim=16, max_model_len=512)
    x = b.embed("embed.weight")
    h = b.linear(x, "qkv.weight", 128)
    q = b.slice(h, 0, 64)
    b.write_kv(0, b.slice(h, 64, 96), b.slice(h, 96, 128))
    o = b.linear(b.attend(q, 0, num_heads=4, scale=0.25), "o.weight", 48)
    x = b.add(b.add(x, o), b.scale(o, 0.5))  # the product is read again: its tiles cannot add
    b.output(b.linear(b.select_rows(x), "head.weight", 97))
    program = b.finish()
    source = dict_source(random_parameters(program, 3, 1.0))
    executor = make_f32(program, source, num_threads=2)
    assert executor._lowered.native.stages == [
        *("rows", "linear x1", "rows", "attend"),
        *("head: rows", "head: linear x1", "head: rows", "head: linear x1"),
    ]
    prompts = random_prompts((1, 16, 33, 70))
    expected = run(ReferenceExecutor(program=program, source=source, keep_logits=True, **SIZES), prompts)
    assert_logits_near(run(executor, prompts), expected, F32_TOLERANCE)


def test_what_ends_between_two_attentions_needs_no_row_a_token() -> None:
    program, source = quantised()
    sizes = [make(program, source, max_num_batched_tokens=n)._lowered.native.workspace_bytes for n in (4096, 8192)]
    assert sizes[1] - sizes[0] == 4096 * 4 * 3 * 96  # the residual, the queries, what attention makes of them


def test_drawing_is_that_of_the_reference_sampler() -> None:
    program, source = quantised()
    params = [
        SamplingParams(temperature=0.7, top_k=5),
        SamplingParams(temperature=1.3, top_p=0.8, min_p=0.02),
        SamplingParams(temperature=1.0, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=-0.2),
        SamplingParams(temperature=0.0, logit_bias={5: 30.0, 7: -100.0}),
        SamplingParams(temperature=0.0, min_tokens=4, logprobs=3),
    ]
    prompts = random_prompts((5, 9, 30, 40, 50))
    driver = Driver(make(program, source), block_size=16, num_blocks=NUM_BLOCKS)
    ends = tuple(range(40))
    rows = [
        driver.add(prompt, p, seed=2**63 + i, sample_index=i, end_token_ids=ends)
        for i, (prompt, p) in enumerate(zip(prompts, params, strict=True))
    ]
    for step in range(6):
        before = {row: list(driver.tokens[row]) for row in rows}
        output = driver.step({row: len(prompts[i]) if step == 0 else 1 for i, row in enumerate(rows)})
        for i, row in enumerate(rows):
            drawer = sampling_reference.Drawer(
                params[i], 2**63 + i, i, prompts[i], before[row][len(prompts[i]) :], ends
            )
            assert output.token_ids[i] == sampling_reference.draw(driver.logits[row][-1], drawer)
        logprobs = output.logprobs[4]
        expected = sampling_reference.token_logprobs(driver.logits[rows[4]][-1], output.token_ids[4], 3)
        assert logprobs.token_id == expected.token_id
        assert [i for i, _ in logprobs.top] == [i for i, _ in expected.top]
        assert logprobs.logprob == pytest.approx(expected.logprob, rel=1e-6)
        assert set(output.logprobs) == {4}


def test_one_row_draws_several_samples_as_several_rows_would() -> None:
    program, arrays = tiny_llama(gain=0.3)
    source = dict_source(arrays)
    prompt = random_prompts((20,))[0]
    params = SamplingParams(temperature=2.0, logprobs=0)
    driver = Driver(make(program, source), block_size=16, num_blocks=NUM_BLOCKS)
    row = driver.add(prompt, params, seed=7)
    output = driver.step({row: 20}, num_samples={row: 6})
    assert len(set(output.token_ids)) > 1
    assert set(output.logprobs) == set(range(6))
    for index, token in enumerate(output.token_ids):
        other = driver.add(prompt, params, seed=7, sample_index=index)
        assert driver.step({other: 20}).token_ids == [token]


def test_prompt_logprobs_are_those_of_the_reference() -> None:
    program, arrays = tiny_llama(gain=2.0)
    source = dict_source(arrays)
    prompt = random_prompts((150,))[0]  # more than the head takes at once
    outputs = []
    for executor in (
        make_f32(program, source),
        ReferenceExecutor(program=program, source=source, keep_logits=True, **SIZES),
    ):
        driver = Driver(executor, block_size=16, num_blocks=NUM_BLOCKS)
        row, other = driver.add(prompt), driver.add([1, 2, 3])
        outputs.append(driver.step({row: 140, other: 3}, prompt_logprobs={row: 4}).prompt_logprobs[row])
        outputs[-1] = [*outputs[-1], *driver.step({row: 10}, prompt_logprobs={row: 4}).prompt_logprobs[row]]
    assert len(outputs[0]) == len(outputs[1]) == 149
    for found, expected in zip(*outputs, strict=True):
        assert found.token_id == expected.token_id
        assert found.logprob == pytest.approx(expected.logprob, abs=F32_TOLERANCE)
        assert [v for _, v in found.top] == pytest.approx([v for _, v in expected.top], abs=F32_TOLERANCE)


def test_alternatives_beyond_a_small_vocabulary_are_all_of_it() -> None:
    program, arrays = tiny_llama(vocab_size=7)
    driver = Driver(make(program, dict_source(arrays)), block_size=16, num_blocks=NUM_BLOCKS)
    row = driver.add([1, 2, 3], SamplingParams(logprobs=20))
    output = driver.step({row: 3}, prompt_logprobs={row: 20})
    for entry in (output.logprobs[0], *output.prompt_logprobs[row]):
        assert sorted(token_id for token_id, _ in entry.top) == list(range(7))


def test_nan_fails_its_row_and_no_other() -> None:
    program, arrays = tiny_llama(gain=2.0)
    arrays["embed.weight"] = arrays["embed.weight"].copy()
    arrays["embed.weight"][13] = np.nan
    source = dict_source(arrays)
    driver = Driver(make_f32(program, source, num_threads=2), block_size=16, num_blocks=NUM_BLOCKS)
    good, bad, also_good = driver.add([1, 2, 3]), driver.add([4, 13, 5]), driver.add([6, 7])
    output = driver.step({good: 3, bad: 3, also_good: 2}, prompt_logprobs={bad: 1})
    assert dict(output.failed) == {bad: "the model's logits hold NaN"}
    assert bad not in output.prompt_logprobs
    alone = run(make_f32(program, source), [[1, 2, 3]], 1)[0]
    assert output.token_ids[0] == alone.token_ids[0]


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8"])
def test_forks_share_blocks_and_copies_come_first(kv_dtype: str) -> None:
    program, source = quantised()
    prompt = random_prompts((20,))[0]
    driver = Driver(make(program, source, kv_dtype=kv_dtype), block_size=16, num_blocks=NUM_BLOCKS)
    params = SamplingParams(temperature=1.0)
    parent = driver.add(prompt, params, seed=3)
    drawn = driver.step({parent: 20}, num_samples={parent: 2}).token_ids
    child = driver.fork(parent, sample_index=1, last_token=drawn[1])
    for _ in range(20):
        driver.step({parent: 1, child: 1})
    for row, index in ((parent, 0), (child, 1)):
        other = Driver(make(program, source, kv_dtype=kv_dtype), block_size=16, num_blocks=NUM_BLOCKS)
        alone = other.add(prompt, params, seed=3, sample_index=index)
        other.step({alone: 20})
        for _ in range(20):
            other.step({alone: 1})
        assert other.tokens[alone] == driver.tokens[row]


def test_a_cached_prompt_runs_its_last_token_without_writing() -> None:
    program, source = quantised()
    prompt = random_prompts((32,))[0]
    driver = Driver(make(program, source), block_size=16, num_blocks=NUM_BLOCKS)
    first = driver.add(prompt)
    driver.step({first: 32})
    tables = driver.rows[first].tables
    before = [driver.executor.read_block(block) for block in tables[0]]
    again = driver.add(prompt, tables=tables, num_computed_tokens=31)
    driver.step({again: 1}, first_write={again: 32})
    assert np.array_equal(driver.logits[again][0], driver.logits[first][0])
    assert [driver.executor.read_block(block) for block in tables[0]] == before


@pytest.mark.parametrize(("kv_dtype", "widths"), [("bfloat16", (2, 0)), ("int8", (1, 2))])
def test_a_block_read_and_written_elsewhere_serves_as_well(kv_dtype: str, widths: tuple[int, int]) -> None:
    program, source = quantised()
    prompt = random_prompts((20,))[0]
    expected = run(make(program, source, kv_dtype=kv_dtype), [prompt], 8)[0]
    driver = Driver(make(program, source, kv_dtype=kv_dtype), block_size=16, num_blocks=NUM_BLOCKS)
    a = driver.add(prompt)
    driver.step({a: 20})
    moved = driver.copy_block(BlockId(0))
    driver._copies.clear()
    executor, table = driver.executor, driver.rows[a].tables[0]
    payload = executor.read_block(table[0])
    assert len(payload) == executor.info.kv_bytes_per_block == program.kv_bytes_per_block(16, *widths)
    executor.write_block(moved, payload)
    executor.release_blocks([table[0]])
    b = driver.add(driver.tokens[a], tables=[[moved, table[1]]], num_computed_tokens=20)
    for _ in range(7):
        driver.step({b: 1})
    assert driver.tokens[b][20:] == expected.token_ids


def a_native_step(executor: CpuExecutor, position: int = 0, num_groups: int = 1) -> dict[str, Any]:
    """The native call for one token of row 0, in block 0."""
    tables = [np.zeros((1, 64), np.int32)] * num_groups
    rows = _native.StepRows(np.ones((1, 600), np.int32), np.array([600], np.int32), tables, 16)
    plan = {"row_ids": [0], "num_computed_tokens": [position], "num_scheduled_tokens": [1], "first_write": [0]}
    rest = {
        "num_samples": [1],
        "prompt_queries": np.zeros((0, 3), np.int32),
        "masks": None,
        "mask_of": [],
        "logits": None,
    }
    return {"drawing": executor._drawing, "rows": rows} | plan | rest


def test_parts_made_for_another_model_are_refused() -> None:
    program, source = quantised()
    executor = make(program, source, num_threads=2)
    for vocab_size, num_threads in ((98, 2), (97, 1)):
        step = a_native_step(executor)
        step["drawing"] = _native.Drawing(ISAS[0], vocab_size, 4, num_threads)
        with pytest.raises(ValueError, match="another runner"):
            executor._runner.run(**step)
    for layers, heads, head_dim, words in ((2, 1, 16, "heads"), (2, 2, 32, "heads"), (1, 2, 16, "lacks a layer")):
        arena = _native.Arena(8, 16, layers, heads, head_dim, "bfloat16")
        with pytest.raises(ValueError, match=words):
            _native.Runner(executor._lowered.native, arena, executor._pool, 512)


def test_arrays_that_point_outside_are_refused_before_anything_runs() -> None:
    program, source = quantised()
    driver = Driver(make(program, source), block_size=16, num_blocks=NUM_BLOCKS)
    bad = driver.add([1, 97])
    with pytest.raises(ValueError, match="outside the vocabulary"):
        driver.step({bad: 2})
    executor = driver.executor
    for step, words in (
        (a_native_step(executor, num_groups=2), "one a KV group"),
        (a_native_step(executor, position=512), "max_model_len"),
        (a_native_step(executor, position=600), "not known"),
        (a_native_step(executor) | {"num_scheduled_tokens": [0]}, "not known"),
        (a_native_step(executor) | {"row_ids": [1]}, "no such row"),
        (a_native_step(executor) | {"num_samples": []}, "an entry a sequence"),
    ):
        with pytest.raises(ValueError, match=words):
            executor._runner.run(**step)
    short, masks = np.zeros((1, 3), np.uint32), np.zeros((1, 4), np.uint32)
    for bitmaps, mask_of, words in (
        (short, [0], "a bit a token"),
        (masks, [], "an entry a row that draws"),
        (masks, [1], "not there"),
    ):
        step = a_native_step(executor) | {"masks": bitmaps, "mask_of": mask_of}
        with pytest.raises(ValueError, match=words):
            executor._runner.run(**step)
    worse = driver.add(list(range(20)), tables=[[BlockId(NUM_BLOCKS)]], num_computed_tokens=16)
    with pytest.raises(ValueError, match="block that does not exist"):
        driver.step({worse: 4})
