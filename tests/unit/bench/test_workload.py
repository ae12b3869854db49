from __future__ import annotations

import random
import statistics
from pathlib import Path

import pytest

from octavo.bench.plan import WorkloadOptions, make_plan, warmup_plan
from octavo.bench.workload import RandomPrompts, drawn_lengths, scaled, sharegpt_lengths
from octavo.errors import ConfigError

TRACE = '{"timestamp": 0, "input_length": 700, "output_length": 10, "hash_ids": [3, 4]}\n' + (
    '{"timestamp": 500, "input_length": 600, "output_length": 20, "hash_ids": [3, 5]}\n'
)


def test_lengths_keep_to_their_range_and_their_mean() -> None:
    pairs = drawn_lengths(random.Random(1), 5_000, (100, 40), 0.5)
    prompts = [prompt for prompt, _ in pairs]
    assert (min(prompts), max(prompts)) == (50, 150)
    assert statistics.mean(prompts) == pytest.approx(100, rel=0.02)
    assert drawn_lengths(random.Random(1), 3, (100, 40), 0.0) == [(100, 40)] * 3
    assert min(drawn_lengths(random.Random(1), 500, (1, 1), 1.0)) >= (1, 1)


def test_sharegpt_lengths_have_the_papers_means() -> None:
    pairs = sharegpt_lengths(random.Random(2), 20_000)
    assert statistics.mean(prompt for prompt, _ in pairs) == pytest.approx(161.31, rel=0.05)
    assert statistics.mean(output for _, output in pairs) == pytest.approx(337.99, rel=0.05)
    assert max(map(sum, pairs)) < 2048


def test_lengths_are_scaled_and_cut_to_what_fits() -> None:
    assert scaled((1000, 100), 0.1, None) == (100, 10)
    assert scaled((3, 3), 0.01, None) == (1, 1)
    assert scaled((1000, 100), 1.0, 300) == (200, 100)
    assert scaled((1000, 900), 1.0, 300) == (1, 299)
    assert scaled((1000, 100), 1.0, 300, num_shared_tokens=50) == (150, 100)
    with pytest.raises(ConfigError, match="leaves no room"):
        scaled((5, 5), 1.0, 40, num_shared_tokens=39)


def test_prompts_are_ids_above_the_special_ones_or_words() -> None:
    ids = RandomPrompts(0, 1000).prompt(300)
    assert isinstance(ids, tuple)
    assert len(ids) == 300
    assert min(ids) >= 100
    assert max(ids) < 1000
    text = RandomPrompts(0, None).prompt(30)
    assert isinstance(text, str)
    assert len(text.split()) == 30


@pytest.mark.parametrize("vocab_size", [1000, None])
def test_a_shared_prefix_is_the_same_and_the_rest_is_not(vocab_size: int | None) -> None:
    prompts = RandomPrompts(0, vocab_size, num_shared_tokens=20)
    one, other = (list(p.split() if isinstance(p, str) else p) for p in (prompts.prompt(10), prompts.prompt(10)))
    assert len(one) == len(other) == 30
    assert one[:20] == other[:20]
    assert one[20:] != other[20:]


def test_equal_blocks_are_equal_tokens_wherever_they_come() -> None:
    prompts = RandomPrompts(0, 1000)
    one, other = prompts.of_blocks((3, 4), 24, 16), prompts.of_blocks((3, 5), 40, 16)
    assert len(one), len(other) == (24, 40)
    assert one[:16] == other[:16]
    assert one[16:24] != other[16:24]
    assert RandomPrompts(0, 1000).of_blocks((3,), 16, 16) == one[:16]
    assert RandomPrompts(1, 1000).of_blocks((3,), 16, 16) != one[:16]


def test_equal_options_make_equal_plans_and_warm_ups_are_none_of_them() -> None:
    options = WorkloadOptions(num_prompts=20, input_len=30, output_len=5, range_ratio=0.5, request_rate=10.0, seed=4)
    plan = make_plan(options, 1000)
    assert plan == make_plan(options, 1000)
    assert [each.at_seconds for each in plan] == sorted(each.at_seconds for each in plan)
    assert plan[-1].at_seconds > 0
    warmups = warmup_plan(options, 3, 1000)
    assert [(each.at_seconds, each.num_prompt_tokens, each.num_output_tokens) for each in warmups] == [(0.0, 30, 5)] * 3
    assert not {each.prompt for each in warmups} & {each.prompt for each in plan}


def test_a_trace_gives_times_lengths_and_shared_blocks_and_scales(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(TRACE)
    one, other = make_plan(WorkloadOptions("trace", path, length_scale=0.1, time_scale=2.0), 1000)
    assert (one.at_seconds, one.num_prompt_tokens, one.num_output_tokens) == (0.0, 70, 1)
    assert (other.at_seconds, other.num_prompt_tokens, other.num_output_tokens) == (1.0, 60, 2)
    assert one.prompt[:51] == other.prompt[:51]  # a tenth of 512
    assert one.prompt[51:60] != other.prompt[51:60]
    at_once = make_plan(WorkloadOptions("trace", path, request_rate=float("inf")), 1000)
    assert [each.at_seconds for each in at_once] == [0.0, 0.0]


def test_lengths_and_texts_of_files(tmp_path: Path) -> None:
    lengths, texts = tmp_path / "lengths.csv", tmp_path / "texts.jsonl"
    lengths.write_text("prompt_tokens,output_tokens\n5,6\n7,8\n")
    texts.write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    plan = make_plan(WorkloadOptions("lengths", lengths, num_prompts=30), 1000)
    assert {(each.num_prompt_tokens, each.num_output_tokens) for each in plan} == {(5, 6), (7, 8)}
    plan = make_plan(WorkloadOptions("texts", texts, num_prompts=5, output_len=9), 1000)
    assert sorted({str(each.prompt) for each in plan}) == ["one", "two"]
    assert {(each.num_prompt_tokens, each.num_output_tokens) for each in plan} == {(None, 9)}
    with_head = make_plan(WorkloadOptions("texts", texts, num_prompts=2, shared_prefix_len=3), None)
    assert len({" ".join(str(each.prompt).split()[:3]) for each in with_head}) == 1
    with pytest.raises(ConfigError, match="--prompt-format text"):
        make_plan(WorkloadOptions("texts", texts, shared_prefix_len=3), 1000)


def test_a_dataset_and_its_file_come_together() -> None:
    with pytest.raises(ConfigError, match="trace needs --dataset-path"):
        WorkloadOptions("trace")
    with pytest.raises(ConfigError, match="random reads no file"):
        WorkloadOptions("random", Path("x"))
