"""The story behind `octavo blocks` where its command line does not lead: what a model alone brings with it."""

from __future__ import annotations

from pathlib import Path

from octavo.cli.paging import PagingStory
from octavo.core.block import NULL_BLOCK
from octavo.core.request import Request
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_config import SchedulerConfig
from octavo.executors.fake import FakeExecutor
from octavo.sampling_params import SamplingParams
from support.cli_runner import run
from support.hf_folder import served_golden

WINDOW = 4


def test_a_model_whose_layers_all_see_a_window_gives_back_what_fell_out() -> None:
    config = SchedulerConfig(num_blocks=8, block_size=2, max_model_len=32, group_windows=(WINDOW,))
    executor = FakeExecutor(vocab_size=50, num_blocks=8, block_size=2, group_windows=(WINDOW,))
    story = PagingStory(Scheduler(config), executor, num_blocks=8, block_size=2)
    sampling = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    steps = list(story.tell([Request("one", (1, 2, 3), sampling, seed=0, end_token_ids=(), arrival_time=0.0)]))
    held = [[block for block in step.sequences[0].tables[0] if block != NULL_BLOCK] for step in steps]
    assert all(
        len(blocks) == len(step.pool.owners) <= WINDOW // 2 + 1 for blocks, step in zip(held, steps, strict=True)
    )
    assert all(set(step.pool.free) == set(range(8)) - set(blocks) for blocks, step in zip(held, steps, strict=True))
    num_left = sum(len(blocks) for step in steps for blocks in step.left.values())
    assert num_left == steps[-1].sequences[0].tables[0].count(NULL_BLOCK) >= 4


def test_a_model_with_several_groups_says_how_to_see_two(tmp_path: Path) -> None:
    folder = served_golden("qwen2-half-sliding", tmp_path)
    result = run("blocks", "hello there", "--model", str(folder))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "keeps 2 block tables a sequence" in result.stderr
    assert "--window" in result.stderr
