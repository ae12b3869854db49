"""Asks transformers, in float32 over the dequantised GGUF, how SmolLM2 scores: tests/goldens/lm_eval.json.

    python scripts/make_lm_eval_golden.py SmolLM2-135M-Instruct.Q4_1.gguf [OUT.json]

Runs in an environment with torch, transformers, tokenizers and gguf (not octavo's own). Scores as lm-eval does: a
choice is worth the sum of the log-probabilities of its tokens after the question, the best one is the answer; a written
answer is what greedy decoding says up to the first line break. The file then holds the tasks' texts, from which a test
makes its own, and for each question what every choice is worth, or what was written and the smallest gap between the
two best logits on the way: another implementation may write something else only where that gap is below its tolerance.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from make_smollm2_oracle import read_model, read_tokenizer

ROOT = Path(__file__).parents[1]
QUESTIONS = ROOT / "tests" / "data" / "bbh" / "questions.jsonl"
MAX_WRITTEN_TOKENS = 8
BOOLEAN = "Q: not True is\nA: False\n\nQ: True or False is\nA: True\n\nQ: not ( False ) and False is\nA: False\n\n"
# name -> (task of the questions, what stands before each question, the choices; none: the answer is written)
TASKS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "boolean": ("boolean_expressions", BOOLEAN, ("True", "False")),
    "navigate": ("navigate", "", ("Yes", "No")),
    "shuffled": ("tracking_shuffled_objects_three_objects", "", ("(A)", "(B)", "(C)")),
    "boolean_written": ("boolean_expressions", BOOLEAN, ()),
}


def worth(model: Any, tokenizer: Any, context: str, choice: str) -> float:
    """The sum of the log-probabilities of the choice's tokens."""
    import torch

    whole = tokenizer.encode(f"{context} {choice}", add_special_tokens=False).ids
    first = len(tokenizer.encode(context, add_special_tokens=False).ids)
    logprobs = torch.log_softmax(model(input_ids=torch.tensor([whole])).logits[0].double(), dim=-1)
    return sum(float(logprobs[at - 1, whole[at]]) for at in range(first, len(whole)))


def written(model: Any, tokenizer: Any, context: str) -> tuple[str, float]:
    """(the text up to the first line break, the smallest gap between the two best logits)."""
    import torch

    step, cache, tokens, gaps = tokenizer.encode(context, add_special_tokens=False).ids, None, [], []
    for _ in range(MAX_WRITTEN_TOKENS):
        result = model(input_ids=torch.tensor([step]), past_key_values=cache, use_cache=True)
        cache, logits = result.past_key_values, result.logits[0, -1]
        best = torch.topk(logits, 2).values
        tokens.append(int(torch.argmax(logits)))
        gaps.append(float(best[0] - best[1]))
        step = tokens[-1:]
        if "\n" in tokenizer.decode(tokens):
            break
    return tokenizer.decode(tokens).partition("\n")[0], min(gaps)


def score(model: Any, tokenizer: Any, name: str) -> dict[str, Any]:
    task, prefix, choices = TASKS[name]
    rows = [row for row in map(json.loads, QUESTIONS.read_text("utf-8").splitlines()) if row["task"] == task]
    found: list[dict[str, Any]] = []
    num_right = 0
    for row in rows:
        context = f"{prefix}Q: {row['question']}\nA:"
        if choices:
            worths = [worth(model, tokenizer, context, choice) for choice in choices]
            num_right += choices[worths.index(max(worths))] == row["target"]
            found.append({"id": row["id"], "worths": [round(each, 5) for each in worths]})
        else:
            text, gap = written(model, tokenizer, context)
            num_right += text.strip() == row["target"]
            found.append({"id": row["id"], "text": text, "gap": round(gap, 5)})
    print(f"{name}: {num_right} of {len(rows)}", flush=True)
    made = {"task": task, "prefix": prefix, "choices": choices, "max_written_tokens": MAX_WRITTEN_TOKENS}
    return made | {"score": num_right / len(rows), "questions": found}


def one_line_a_question(result: dict[str, Any]) -> str:
    """JSON whose differences can be read."""
    tasks = []
    for name, task in result["tasks"].items():
        fields = ", ".join(f'"{key}": {json.dumps(value)}' for key, value in task.items() if key != "questions")
        rows = ",\n".join("    " + json.dumps(row, ensure_ascii=False) for row in task["questions"])
        tasks.append(f'  "{name}": {{{fields}, "questions": [\n{rows}\n  ]}}')
    head = ",\n ".join(f'"{key}": {json.dumps(value)}' for key, value in result.items() if key != "tasks")
    return "{\n " + head + ',\n "tasks": {\n' + ",\n".join(tasks) + "\n }\n}\n"


def main(gguf_path: Path, out_path: Path) -> None:
    import torch
    import transformers

    model = read_model(gguf_path)
    tokenizer = read_tokenizer(gguf_path)
    with torch.inference_mode():
        tasks = {name: score(model, tokenizer, name) for name in TASKS}
    result = {
        "made_with": f"transformers {transformers.__version__}, torch {torch.__version__}, float32, eager attention",
        "gguf_sha256": hashlib.sha256(gguf_path.read_bytes()).hexdigest(),
        "questions_sha256": hashlib.sha256(QUESTIONS.read_bytes()).hexdigest(),
        "tasks": tasks,
    }
    out_path.write_text(one_line_a_question(result), encoding="utf-8")
    print(f"wrote {out_path}")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) == 3 else ROOT / "tests" / "goldens" / "lm_eval.json")
