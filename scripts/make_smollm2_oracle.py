"""Asks transformers, in float32 over the dequantised GGUF, what SmolLM2 says: tests/goldens/smollm2.json.

    python scripts/make_smollm2_oracle.py SmolLM2-135M-Instruct.Q4_1.gguf TEXT_FOR_PERPLEXITY [OUT.json]

Runs in an environment with torch, transformers, tokenizers and gguf (not octavo's own). The file then holds, for each
of 20 prompts, its token ids, 48 greedy tokens (EOS does not stop it) and at each step the gap between the two best
logits: another implementation may differ from a token on only where that gap is below its tolerance. The perplexity
is over the first 5 x 1,024 tokens of the text, as five windows that begin at position 0 each and predict their tokens
1 .. 1,023; of the text only its hash and token count are kept.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from pathlib import Path
from typing import Any

NUM_TOKENS = 48
WINDOW_TOKENS = 1024
NUM_WINDOWS = 5
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def chat(*turns: tuple[str, str]) -> str:
    """The file's own chat template, by hand."""
    given = turns if turns[0][0] == "system" else (("system", SYSTEM), *turns)
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in given) + "<|im_start|>assistant\n"


PROMPTS: dict[str, str] = {
    "capital": "The capital of France is",
    "story": "Once upon a time, in a small village by the sea, there lived a clockmaker who",
    "definition": "Photosynthesis is the process by which",
    "one token": "Hello",
    "numbers": "1, 1, 2, 3, 5, 8, 13, 21,",
    "arithmetic": "Question: What is 17 + 25?\nAnswer:",
    "python": "def is_prime(n: int) -> bool:\n    ",
    "c": "#include <stdio.h>\n\nint main(void) {\n    for (int i = 0; i < 10; i++) {\n",
    "json": '{"name": "Ada", "born": 1815, "languages": ["English", "French"], "address": {',
    "sql": "SELECT customer, SUM(amount) FROM orders WHERE",
    "korean": "안녕하세요. 오늘 날씨가",
    "german": "Der Zug nach Hamburg fährt heute von Gleis",
    "emoji": "Top five fruits: 🍎 apple, 🍌 banana, 🍇",
    "list": "Things to pack for a winter hike:\n1. Warm gloves\n2. A headlamp\n3.",
    "whitespace": "a\t\tb\n\n\n   c    d\n\n- ",
    "repetition": "the cat sat on the mat. the cat sat on the mat. the cat sat on",
    "chat": chat(("user", "Give me three tips for learning to swim as an adult.")),
    "chat with system": chat(("system", "You answer in one short sentence."), ("user", "Why is the sky blue?")),
    "chat with history": chat(
        ("user", "My name is Minji and I like pears."),
        ("assistant", "Nice to meet you, Minji! Pears are a great fruit."),
        ("user", "What is my name, and which fruit do I like?"),
    ),
    "chat with emoji": chat(("user", "한국어로 인사해 줘 😊 and then explain what 🌊 means.")),
}


def read_model(path: Path) -> Any:
    """The dequantised file, in float32 with eager attention."""
    import torch
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent),
        gguf_file=path.name,
        quantization_config=transformers.GgufConfig(dequantize=True),
        dtype=torch.float32,
        attn_implementation="eager",
    ).eval()


def read_tokenizer(path: Path) -> Any:
    """GPT-2 style BPE from the GGUF's own tables. "smollm": every digit is a word of its own, then GPT-2's words."""
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    fields = GGUFReader(str(path)).fields
    if fields["tokenizer.ggml.pre"].contents() != "smollm":
        raise SystemExit(f"{path}: the pre-tokenizer is not smollm")
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == 3
        ]
    )
    return tokenizer


def greedy(model: Any, prompt: list[int]) -> tuple[list[int], list[float]]:
    """(tokens, gap between the two best logits at each step)."""
    import torch

    tokens: list[int] = []
    gaps: list[float] = []
    cache, step = None, prompt
    for _ in range(NUM_TOKENS):
        result = model(input_ids=torch.tensor([step]), past_key_values=cache, use_cache=True)
        cache, logits = result.past_key_values, result.logits[0, -1]
        best = torch.topk(logits, 2).values
        tokens.append(int(torch.argmax(logits)))
        gaps.append(round(float(best[0] - best[1]), 5))
        step = tokens[-1:]
    return tokens, gaps


def perplexity(model: Any, ids: list[int]) -> float:
    """exp of the mean negative log-likelihood over the windows; see the top of this file."""
    import torch

    total, count = 0.0, 0
    for first in range(0, NUM_WINDOWS * WINDOW_TOKENS, WINDOW_TOKENS):
        window = torch.tensor([ids[first : first + WINDOW_TOKENS]])
        logprobs = torch.log_softmax(model(input_ids=window).logits[0, :-1].double(), dim=-1)
        total -= float(logprobs.gather(1, window[0, 1:, None]).sum())
        count += WINDOW_TOKENS - 1
    return math.exp(total / count)


def one_line_a_prompt(result: dict[str, Any]) -> str:
    """JSON whose differences can be read."""
    fields = [f'"{key}": {json.dumps(value, ensure_ascii=False)}' for key, value in result.items() if key != "prompts"]
    prompts = ",\n".join("  " + json.dumps(prompt, ensure_ascii=False) for prompt in result["prompts"])
    return "{\n " + ",\n ".join(fields) + f',\n "prompts": [\n{prompts}\n ]\n}}\n'


def main(gguf_path: Path, text_path: Path, out_path: Path) -> None:
    import torch
    import transformers

    model = read_model(gguf_path)
    tokenizer = read_tokenizer(gguf_path)
    prompts = []
    with torch.inference_mode():
        for name, text in PROMPTS.items():
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            tokens, gaps = greedy(model, ids)
            prompts.append({"name": name, "text": text, "prompt_token_ids": ids, "token_ids": tokens, "gaps": gaps})
            print(f"{name}: {tokenizer.decode(tokens)!r}, smallest gap {min(gaps):g}", flush=True)
        text_bytes = text_path.read_bytes()
        ids = tokenizer.encode(text_bytes.decode(), add_special_tokens=False).ids
        found = perplexity(model, ids)
    result = {
        "made_with": f"transformers {transformers.__version__}, torch {torch.__version__}, float32, eager attention",
        "gguf_sha256": hashlib.sha256(gguf_path.read_bytes()).hexdigest(),
        "perplexity": {
            "text_name": text_path.name,
            "text_sha256": hashlib.sha256(text_bytes).hexdigest(),
            "text_num_tokens": len(ids),
            "window_tokens": WINDOW_TOKENS,
            "num_windows": NUM_WINDOWS,
            "value": found,
        },
        "prompts": prompts,
    }
    out_path.write_text(one_line_a_prompt(result), encoding="utf-8")
    print(f"perplexity {found:.4f}; wrote {out_path}")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    default_out = Path(__file__).parents[1] / "tests/goldens/smollm2.json"
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) == 4 else default_out)
