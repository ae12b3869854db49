"""Asks transformers (float32, eager) for beam searches of the committed tiny models: tests/goldens/<name>/beams.json.

    python scripts/make_beam_goldens.py [NAME ...]     (by default those that have the file already)

Runs in an environment with torch and transformers (not octavo's own), after scripts/make_goldens.py. A case holds the
prompt, the parameters, `sequences` (the answers, best first, an end token included) and their `scores`
(transformers' `sequences_scores`: the sum of log-probabilities over length ** length_penalty), and how near the search
came to a tie: `min_gap`, between neighbours among the candidates of any step (sums of log-probabilities, one beyond
the 2 x width that are looked at), and `min_score_gap`, between finished scores, or one and what a running beam could
reach, as a share of the score. Prompts and end tokens are searched for so that both stay far above what float32
rounding can move; end tokens are ones that beams really choose.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

GOLDENS = Path(__file__).parents[1] / "tests/goldens"
NUM_TOKENS = 24
WIDTHS = (2, 4, 6)
PROMPT_LENS = (5, 33, 60)
LENGTH_PENALTIES = (0.0, 1.0, 2.0, -0.5)
EARLY_STOPPING: tuple[bool | str, ...] = (False, True, "never")
MIN_GAP = 5e-4
MIN_SCORE_GAP = 2e-5


class Gaps:
    """Stands between transformers' search and its three decisions, and notes how near each was."""

    def __init__(self, model: Any) -> None:
        self.candidates = self.scores = float("inf")
        self._model = model
        for name, look in (
            ("_get_top_k_continuations", self._see_candidates),
            ("_update_finished_beams", self._see_finished),
            ("_check_early_stop_heuristic", self._see_stop),
        ):
            setattr(model, name, self._wrap(getattr(type(model), name), look, name))

    def close(self) -> None:
        for name in ("_get_top_k_continuations", "_update_finished_beams", "_check_early_stop_heuristic"):
            delattr(self._model, name)

    def _wrap(self, method: Any, look: Any, name: str) -> Any:
        is_static = name == "_check_early_stop_heuristic"

        def call(**arguments: Any) -> Any:
            result = method(**arguments) if is_static else method(self._model, **arguments)
            look(arguments)
            return result

        return call

    def _see_candidates(self, arguments: dict[str, Any]) -> None:
        best = arguments["accumulated_log_probs"][0].topk(arguments["beams_to_keep"] + 1)[0]
        self.candidates = min(self.candidates, float((best[:-1] - best[1:]).min()))

    def _see_finished(self, arguments: dict[str, Any]) -> None:
        """The scores held, and those of this step that may displace them."""
        length = arguments["cur_len"] + 1 - arguments["decoder_prompt_len"]
        finishing = arguments["next_token_hits_stopping_criteria"] & arguments["top_num_beam_mask"][None]
        new = arguments["topk_log_probs"][finishing] / length ** arguments["length_penalty"]
        held = arguments["beam_scores"][arguments["is_sent_finished"]]
        scores = np.sort(np.concatenate([held.numpy(), new.numpy()]).astype(np.float64))
        if len(scores) > 1:
            self.scores = min(self.scores, float((np.diff(scores) / np.abs(scores[:-1])).min()))

    def _see_stop(self, arguments: dict[str, Any]) -> None:
        if not bool(arguments["is_sent_finished"].all()):
            return
        length = arguments["cur_len"] - arguments["decoder_prompt_len"]
        if arguments["early_stopping"] == "never" and arguments["length_penalty"] > 0.0:
            length = arguments["max_length"] - arguments["decoder_prompt_len"]
        reachable = float(arguments["running_beam_scores"][0, 0]) / length ** arguments["length_penalty"]
        worst = float(arguments["beam_scores"].min())
        self.scores = min(self.scores, abs(reachable - worst) / abs(worst))


def search(model: Any, prompt: list[int], case: dict[str, Any]) -> dict[str, Any]:
    """The case with its answers, scores and gaps."""
    import torch

    ends = case["end_token_ids"]
    model.generation_config.eos_token_id = None
    gaps = Gaps(model)
    with torch.inference_mode():
        found = model.generate(
            input_ids=torch.tensor([prompt]),
            attention_mask=torch.ones((1, len(prompt)), dtype=torch.long),
            num_beams=case["width"],
            num_return_sequences=case["width"],
            length_penalty=case["length_penalty"],
            early_stopping=case["early_stopping"],
            max_new_tokens=case["max_tokens"],
            eos_token_id=ends or None,
            pad_token_id=ends[0] if ends else 0,
            do_sample=False,
            output_scores=True,
            return_dict_in_generate=True,
        )
    gaps.close()
    sequences = []
    for row in found.sequences[:, len(prompt) :].tolist():
        end = next((place + 1 for place, token in enumerate(row) if token in ends), len(row))
        sequences.append(row[:end])
    return {
        "prompt_token_ids": prompt,
        **case,
        "sequences": sequences,
        "scores": [round(score, 6) for score in found.sequences_scores.tolist()],
        "min_gap": round(gaps.candidates, 6),
        "min_score_gap": round(min(gaps.scores, 1.0), 6),
    }


def is_clear(case: dict[str, Any]) -> bool:
    return bool(case["min_gap"] >= MIN_GAP and case["min_score_gap"] >= MIN_SCORE_GAP)


def ends_to_try(case: dict[str, Any]) -> list[list[int]]:
    """Tokens the beams of a search without end tokens choose, a fair way in: one alone, then two together."""
    tokens = sorted({token for sequence in case["sequences"] for token in sequence[4:16]})
    return [[token] for token in tokens] + [list(pair) for pair in itertools.pairwise(tokens)]


def cases_of(model: Any, width: int) -> list[dict[str, Any]]:
    """For each prompt length one search without an end token; over all of them every length penalty x early stopping
    with one."""
    from random import Random

    vocab_size = model.config.vocab_size
    plain = {"width": width, "length_penalty": 1.0, "early_stopping": False, "max_tokens": NUM_TOKENS}
    cases: list[dict[str, Any]] = []
    for number, length in enumerate(PROMPT_LENS):
        wanted = [
            (penalty, EARLY_STOPPING[(number + turn) % len(EARLY_STOPPING)])
            for turn, penalty in enumerate(LENGTH_PENALTIES)
        ]
        for seed in range(1000):
            prompt = np.random.default_rng([vocab_size, width, length, seed]).integers(0, vocab_size, length).tolist()
            without = search(model, prompt, plain | {"end_token_ids": []})
            if not is_clear(without):
                continue
            tries = ends_to_try(without)
            Random(seed).shuffle(tries)
            done = first_clear(model, prompt, plain, wanted, tries)
            if done:
                cases += [without, *done]
                break
        else:
            raise SystemExit(f"width {width}, {length} tokens: no prompt keeps the beams apart")
    return cases


def first_clear(
    model: Any, prompt: list[int], plain: dict[str, Any], wanted: list[Any], tries: list[list[int]]
) -> list[dict[str, Any]]:
    """The wanted combinations with the first end tokens that keep all of them clear and are reached; else nothing."""
    for ends in tries[:12]:
        done = []
        for length_penalty, early_stopping in wanted:
            options = {"end_token_ids": ends, "length_penalty": length_penalty, "early_stopping": early_stopping}
            case = search(model, prompt, plain | options)
            if not is_clear(case):
                break
            done.append(case)
        ended = [sequence for case in done for sequence in case["sequences"] if sequence[-1] in ends]
        if len(done) == len(wanted) and len(ended) >= len(wanted):
            return done
    return []


def main(names: list[str]) -> None:
    import torch
    import transformers

    torch.set_num_threads(1)
    for name in names or sorted(path.parent.name for path in GOLDENS.glob("*/beams.json")):
        folder = GOLDENS / name
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        cases = [case for width in WIDTHS for case in cases_of(model, width)]
        lines = ",\n".join(" " + json.dumps(case) for case in cases)
        (folder / "beams.json").write_text(f"[\n{lines}\n]\n")
        ended = sum(sequence[-1] in case["end_token_ids"] for case in cases for sequence in case["sequences"])
        early = sum(len(case["sequences"][0]) < NUM_TOKENS for case in cases)
        gap, score_gap = (min(case[key] for case in cases) for key in ("min_gap", "min_score_gap"))
        print(f"{name}: {len(cases)} searches, {ended} answers ended, {early} best ones early, gaps {gap}, {score_gap}")


if __name__ == "__main__":
    main(sys.argv[1:])
