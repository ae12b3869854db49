"""lm-eval's local-completions against a real `octavo serve`: the scores are transformers' own, for the same model.

No hub: the questions lie in tests/data, and the server tokenises (GET /tokenizer_info, POST /tokenize).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from support.clients import KEY
from support.server_process import ServerProcess

lm_eval = pytest.importorskip("lm_eval")
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]  # theirs, not ours
TESTS = Path(__file__).parents[1]
GOLDEN = json.loads((TESTS / "goldens" / "lm_eval.json").read_text("utf-8"))["tasks"]
# The worth of a choice is a sum of log-probabilities, down to -10; the server rounds activations, the golden is in
# float32. One choice may be off by so much, all of a task by this on average.
WORTH_TOLERANCE = 0.75
MEAN_WORTH_TOLERANCE = 0.3
LOGIT_TOLERANCE = 0.25


def task(name: str, folder: Path) -> dict[str, Any]:
    """What lm-eval calls a task, over this golden's questions."""
    golden = GOLDEN[name]
    rows = [json.loads(line) for line in (TESTS / "data" / "bbh" / "questions.jsonl").read_text("utf-8").splitlines()]
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows if row["task"] == golden["task"]))
    made = {
        "task": f"octavo_{name}",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(path)}},
        "test_split": "test",
        "doc_to_text": golden["prefix"] + "Q: {{question}}\nA:",
        "doc_to_target": "{{target}}",
    }
    if golden["choices"]:
        return made | {
            "output_type": "multiple_choice",
            "doc_to_choice": golden["choices"],
            "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        }
    return made | {
        "output_type": "generate_until",
        "generation_kwargs": {"until": ["\n", "Q:", "A:", ";", "\t"], "max_gen_toks": golden["max_written_tokens"]},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        "filter_list": [{"name": "none", "filter": [{"function": "remove_whitespace"}, {"function": "take_first"}]}],
    }


@pytest.fixture(scope="module")
def results(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("lm_eval")
    patch = pytest.MonkeyPatch()
    patch.setenv("HF_HOME", str(folder / "hub"))
    patch.setenv("HF_HUB_OFFLINE", "1")
    patch.setenv("OPENAI_API_KEY", KEY)
    arguments = {
        "model": "m",
        "base_url": f"{server.url}/v1/completions",
        "auth_token": KEY,
        "num_concurrent": 8,
        "max_retries": 1,
    }
    try:
        yield lm_eval.simple_evaluate(
            model="local-completions",
            model_args=arguments,
            tasks=[task(name, folder) for name in GOLDEN],
            log_samples=True,
            bootstrap_iters=0,
        )
    finally:
        patch.undo()


@pytest.mark.parametrize("name", GOLDEN)
def test_the_score_is_transformers_own_within_one_standard_error(results: Any, name: str) -> None:
    golden = GOLDEN[name]
    metric = "acc" if golden["choices"] else "exact_match"
    found = results["results"][f"octavo_{name}"][f"{metric},none"]
    num = len(golden["questions"])
    error = math.sqrt(golden["score"] * (1 - golden["score"]) / (num - 1))
    assert abs(found - golden["score"]) <= error


@pytest.mark.parametrize("name", [name for name in GOLDEN if GOLDEN[name]["choices"]])
def test_each_choice_is_worth_what_transformers_says(results: Any, name: str) -> None:
    samples = {sample["doc"]["id"]: sample for sample in results["samples"][f"octavo_{name}"]}
    errors = []
    for question in GOLDEN[name]["questions"]:
        answers = [response[0] for response in samples[question["id"]]["resps"]]
        errors += [abs(float(found) - worth) for (found, _), worth in zip(answers, question["worths"], strict=True)]
    assert max(errors) < WORTH_TOLERANCE
    assert sum(errors) / len(errors) < MEAN_WORTH_TOLERANCE


def test_what_is_written_differs_only_where_two_tokens_nearly_tie(results: Any) -> None:
    samples = {sample["doc"]["id"]: sample for sample in results["samples"]["octavo_boolean_written"]}
    for question in GOLDEN["boolean_written"]["questions"]:
        found = samples[question["id"]]["resps"][0][0]
        assert found == question["text"] or question["gap"] < LOGIT_TOLERANCE
