"""S15: a row of a batch carries nothing of the one that had its place: ten thousand steps of joins, leaves and evictions."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine, EngineRequest
from octavo.grammar_spec import GrammarSpec
from octavo.sampling_params import SamplingParams
from support.engines import Answers, assert_drained
from support.gguf_maker import tiny_tokens
from support.hf_folder import write_folder
from support.tiny_models import llama_config

pytestmark = [pytest.mark.security("S15"), pytest.mark.long]

NUM_STEPS = 10_000
KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "seed": 1},
    {"temperature": 1.2, "seed": 2, "top_k": 5, "min_p": 0.05},
    {"temperature": 0.8, "seed": 3, "n": 3},
    {"presence_penalty": 1.5, "frequency_penalty": 1.0},
    {"repetition_penalty": 1.8},
    {"logit_bias": {7: 100.0}},
    {"logit_bias": {9: -100.0, 11: 4.0}, "temperature": 1.0, "seed": 4},
    {"allowed_token_ids": (5, 9, 14, 20, 31)},
    {"allowed_token_ids": (40, 41), "temperature": 1.0, "seed": 5},
    {"grammar": GrammarSpec("regex", "[a-z]{4,12}"), "temperature": 1.0, "seed": 6},
    {"grammar": GrammarSpec("choice", '["aa", "bcd", "e"]'), "temperature": 1.0, "seed": 7, "n": 2},
    {"logprobs": 3, "min_tokens": 4},
    {"bad_words": ("a", "b")},
]


def engine_of(folder: Path, **options: Any) -> Engine:
    config = EngineConfig(model=str(folder), executor="cpu", num_threads=1, max_model_len=96, block_size=16, **options)
    return build_engine(config, strict=True)


def asked(kind: int, rng: Random) -> tuple[tuple[int, ...], SamplingParams]:
    prompt = tuple(4 + rng.randrange(40) for _ in range(rng.choice((1, 3, 15, 16, 17, 40))))
    fields = {"temperature": 0.0, "max_tokens": rng.choice((1, 8, 30)), "ignore_eos": "grammar" not in KINDS[kind]}
    return prompt, SamplingParams(**(fields | KINDS[kind]))


def words(answers: Answers) -> dict[int, Any]:
    return {key[1]: (tuple(each.token_ids), each.text, each.finish_reason) for key, each in answers.items()}


def test_every_answer_is_what_it_is_alone(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, config=llama_config(vocab_size=len(tiny_tokens()), tie_word_embeddings=True))
    rng = Random(20)
    cases = [asked(kind, rng) for kind in range(len(KINDS)) for _ in range(3)]
    alone: list[dict[int, Any]] = []
    single = engine_of(folder, max_num_seqs=8)
    for number, (prompt, sampling) in enumerate(cases):
        single.add_request(EngineRequest(f"{number}", prompt, sampling))
        answers = Answers()
        while single.has_unfinished:
            answers.take(single.step())
        alone.append(words(answers))
        single.reset_prefix_cache()
    single.close()

    crowd = engine_of(folder, max_num_seqs=7, num_gpu_blocks_override=9, max_num_batched_tokens=24)
    answers, live, case_of, steps = Answers(), set[str](), dict[str, int](), 0
    aborted: set[str] = set()
    while steps < NUM_STEPS or crowd.has_unfinished:
        if steps < NUM_STEPS and len(live) < 12 and rng.random() < 0.5:
            number = rng.randrange(len(cases))
            name = f"r{len(case_of)}"
            case_of[name] = number
            live.add(name)
            crowd.add_request(EngineRequest(name, *cases[number]))
        if live and rng.random() < 0.02:
            name = rng.choice(sorted(live))
            aborted.add(name)
            crowd.abort(name)
        if rng.random() < 0.002:
            crowd.reset_prefix_cache()
        answers.take(crowd.step())
        live = {name for name in live if any(answers.get((name, i)) is None or answers[name, i].finish_reason is None for i in range(cases[case_of[name]][1].n))}  # fmt: skip
        steps += 1
    assert_drained(crowd)
    stats = crowd.stats()
    crowd.close()
    assert stats.num_preemptions > 50, "rows were taken away and came back"
    assert len(aborted) > 50
    assert steps >= NUM_STEPS
    num_compared = 0
    for (name, index), answer in answers.items():
        tokens, text, reason = alone[case_of[name]][index]
        if answer.finish_reason == "abort":
            assert name in aborted
            assert tokens[: len(answer.token_ids)] == tuple(answer.token_ids)
        else:
            assert (tuple(answer.token_ids), answer.text, answer.finish_reason) == (tokens, text, reason), KINDS[
                case_of[name] // 3
            ]
            num_compared += 1
    assert num_compared > 1000
