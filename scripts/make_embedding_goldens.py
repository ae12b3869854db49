"""Asks transformers for SmolLM2's hidden states (float32, the dequantised GGUF): tests/goldens/smollm2_embeddings.json

    python scripts/make_embedding_goldens.py SmolLM2-135M-Instruct.Q4_1.gguf [OUT.json]

Runs in an environment with torch, transformers and gguf (not octavo's own). For some of the prompts of smollm2.json the
file holds the mean over all tokens of the last hidden state (behind the last norm), and the last token's, as base64 of
little-endian float32, not normalised.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from make_smollm2_oracle import read_model

GOLDENS = Path(__file__).parents[1] / "tests/goldens"
NAMES = ("capital", "one token", "python", "json", "korean", "emoji", "chat with history")


def pooled(model: Any, ids: list[int]) -> tuple[Any, Any]:
    """(mean, last) float32 [hidden_size] of the model's last hidden state."""
    import torch

    with torch.inference_mode():
        states = model.model(input_ids=torch.tensor([ids])).last_hidden_state[0].double()
    return states.mean(dim=0).float().numpy(), states[-1].float().numpy()


def encoded(vector: Any) -> str:
    return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode("ascii")


def main(gguf_path: Path, out_path: Path) -> None:
    import torch
    import transformers

    prompts = {each["name"]: each for each in json.loads((GOLDENS / "smollm2.json").read_text("utf-8"))["prompts"]}
    model = read_model(gguf_path)
    cases = []
    for name in NAMES:
        ids = prompts[name]["prompt_token_ids"]
        mean, last = pooled(model, ids)
        cases.append({"name": name, "prompt_token_ids": ids, "mean": encoded(mean), "last": encoded(last)})
    result = {
        "made_with": f"transformers {transformers.__version__}, torch {torch.__version__}, float32, eager attention",
        "gguf_sha256": hashlib.sha256(gguf_path.read_bytes()).hexdigest(),
        "cases": cases,
    }
    lines = ",\n".join("  " + json.dumps(case) for case in result.pop("cases"))
    fields = ",\n ".join(f'"{key}": {json.dumps(value)}' for key, value in result.items())
    out_path.write_text(f'{{\n {fields},\n "cases": [\n{lines}\n ]\n}}\n', encoding="utf-8")
    print(f"wrote {out_path}")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) == 3 else GOLDENS / "smollm2_embeddings.json")
