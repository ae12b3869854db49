"""Makes tiny random models of every family and asks transformers (float32, eager) what they say: tests/goldens/<name>/.

    python scripts/make_goldens.py [OUT_DIR [NAME ...]]

Runs in an environment with torch and transformers (not octavo's own). A folder holds config.json and
model.safetensors as transformers writes them, golden.json (prompts, 32 greedy tokens each, the smallest gap between
the two best logits on the way) and logits.npz (float32 [places, vocab_size]; golden.json says which places). Weights
are drawn so that logits have a spread of several units and no greedy step is nearly a tie: a wrong sign, a missing
scale or a swapped row is far outside any tolerance.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

NUM_TOKENS = 32
PROMPT_LENS = (1, 7, 40, 83)  # within a block of 16, across several, and at odd places
MIN_GAP = 2e-3  # of logits, at every greedy step: far above what float32 rounding can move

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
COMMON: dict[str, Any] = {"num_hidden_layers": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-5}
MODELS: dict[str, dict[str, Any]] = {
    "llama-tied": {
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 256,
        "tie_word_embeddings": True,
    },
    "llama-gqa3-bias": {
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "vocab_size": 300,
        "tie_word_embeddings": False,
        "attention_bias": True,
        "mlp_bias": True,
        "dtype": "bfloat16",
    },
    "llama-gqa4-linear": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "vocab_size": 320,
        "tie_word_embeddings": False,
        "dtype": "float16",
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    },
    "llama-llama3": {
        "hidden_size": 128,
        "intermediate_size": 224,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "num_hidden_layers": 3,
        "vocab_size": 512,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        "rope_parameters": LLAMA3,
    },
    "mistral": {
        "architecture": "mistral",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 257,
        "tie_word_embeddings": False,
        "sliding_window": None,
        "dtype": "bfloat16",
    },
    "mistral-window": {
        "architecture": "mistral",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 260,
        "tie_word_embeddings": True,
        "sliding_window": 20,
        "dtype": "bfloat16",
    },
    "qwen2-half-sliding": {  # two KV groups
        "architecture": "qwen2",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 270,
        "tie_word_embeddings": True,
        "use_sliding_window": True,
        "sliding_window": 24,
        "max_window_layers": 1,
        "dtype": "bfloat16",
    },
    "qwen3-mostly-sliding": {  # 2 full and 5 sliding layers: four KV groups of two, the last of them half empty
        "architecture": "qwen3",
        "num_hidden_layers": 7,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "vocab_size": 280,
        "tie_word_embeddings": False,
        "attention_bias": True,
        "use_sliding_window": True,
        "sliding_window": 24,
        "layer_types": ["full_attention" if layer % 3 == 2 else "sliding_attention" for layer in range(7)],
        "dtype": "bfloat16",
    },
    "gemma3": {  # sliding layers 0 to 4 and 6, a full one: seven KV groups
        "architecture": "gemma3",
        "num_hidden_layers": 7,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "query_pre_attn_scalar": 20,
        "vocab_size": 290,
        "tie_word_embeddings": False,  # random and tied, its scaled embedding would only repeat the last token
        "sliding_window": 24,
        "dtype": "bfloat16",
    },
}


def random_model(name: str, seed: int) -> Any:
    """A float32 model whose weights are values of its config's dtype."""
    import torch
    import transformers

    options = COMMON | MODELS[name]
    architecture = options.pop("architecture", "llama")
    dtype = getattr(torch, options.pop("dtype", "float32"))
    kind = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma3": "Gemma3"}[
        architecture
    ]
    config = getattr(transformers, f"{kind}TextConfig" if kind == "Gemma3" else f"{kind}Config")(**options)
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            if parameter_name.endswith("bias"):
                values *= 0.3
            elif parameter.dim() == 1:
                values = 0.2 * values + (0.0 if kind == "Gemma3" else 1.0)  # Gemma adds the one itself
            elif "embed" in parameter_name:
                values *= 0.5
            else:
                values *= 2.0 / parameter.shape[1] ** 0.5
            parameter.copy_(values.to(dtype))
    config.dtype = dtype
    return model


def prompts_for(vocab_size: int) -> list[list[int]]:
    generator = np.random.default_rng(vocab_size)
    return [generator.integers(0, vocab_size, length).tolist() for length in PROMPT_LENS]


def logits_of(model: Any, tokens: list[int]) -> np.ndarray:
    """float32 [tokens, vocab_size]."""
    import torch

    with torch.inference_mode():
        return np.asarray(model(input_ids=torch.tensor([tokens])).logits[0].float().numpy(), np.float32)


def golden_of(model: Any) -> tuple[dict[str, Any], np.ndarray]:
    """(what golden.json holds, the logits of its places). No KV cache: the plainest forward pass there is."""
    cases, places, rows = [], [], []
    smallest = float("inf")
    for case, prompt in enumerate(prompts_for(model.config.vocab_size)):
        tokens = list(prompt)
        for _ in range(NUM_TOKENS):
            last = logits_of(model, tokens)[-1]
            second, first = np.sort(last)[-2:]
            smallest = min(smallest, float(first - second))
            tokens.append(int(np.argmax(last)))
        cases.append({"prompt_token_ids": prompt, "token_ids": tokens[len(prompt) :]})
        logits = logits_of(model, tokens)
        for position in sorted({0, len(prompt) // 2, len(prompt) - 1, len(tokens) - 2}):
            places.append({"case": case, "position": position})
            rows.append(logits[position])
    golden = {"min_gap": round(smallest, 6), "cases": cases, "places": places}
    return golden, np.stack(rows)


def save(model: Any, folder: Path, golden: dict[str, Any], logits: np.ndarray) -> None:
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    dtype = model.config.dtype
    model.to(dtype).save_pretrained(folder)
    model.to(torch.float32)
    (folder / "generation_config.json").unlink(missing_ok=True)
    np.savez_compressed(folder / "logits.npz", logits=logits)
    lines = [f' "min_gap": {golden["min_gap"]},']
    for key in ("cases", "places"):
        entries = ",\n".join("  " + json.dumps(entry) for entry in golden[key])
        lines.append(f' "{key}": [\n{entries}\n ]' + ("," if key == "cases" else ""))
    (folder / "golden.json").write_text("{\n" + "\n".join(lines) + "\n}\n")


def main(out_dir: Path, names: list[str]) -> None:
    for name in names or MODELS:
        for seed in range(100):
            model = random_model(name, seed)
            golden, logits = golden_of(model)
            if golden["min_gap"] >= MIN_GAP and len(set(golden["cases"][2]["token_ids"])) > 4:
                break
        else:
            raise SystemExit(f"{name}: no seed gives greedy steps with a gap of {MIN_GAP}")
        save(model, out_dir / name, golden, logits)
        size = sum(path.stat().st_size for path in (out_dir / name).iterdir())
        print(f"{name}: seed {seed}, spread {logits.std():.2f}, gap {golden['min_gap']:g}, {size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "tests/goldens", sys.argv[2:])
