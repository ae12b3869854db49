"""Question: what does each weight form, and each type of keys and values, cost in perplexity?

    python benchmarks/quality.py --text FILE [--model smollm2] [--windows 5] [--window-tokens 1024] [--quick]

The text is cut into windows that begin at position 0 each; every token but the first is predicted, one token at a time.
A line for each form: perplexity, its ratio to an oracle with the same weights in float32 and nothing rounded, the mean
divergence (KL) of their distributions, and how often both name the same best token. BF16, Q8_0 and Q4_0 are made from
the file's weights; "as in the file" and w8a8 are the file's own. One JSON line last. Fixed work: no repetitions.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.bench.machine import describe_machine, machine_line
from octavo.config import DEFAULT_MODEL, octavo_home
from octavo.loading.load_model import load_model
from octavo.loading.model_files import resolve
from requantised import Requantised, RequantisedSource
from window_runs import Distance, WindowRun, cut_windows, distances, oracle_run

if TYPE_CHECKING:
    from octavo.loading.load_model import LoadedModel

FILE_FORMS: dict[str, dict[str, Any]] = {
    "as in the file": {},
    "as in the file, KV float32": {"kv_dtype": "float32"},
    "as in the file, KV int8": {"kv_dtype": "int8"},
    "w8a8": {"quantization": "w8a8"},
    "w8a8, KV int8": {"quantization": "w8a8", "kv_dtype": "int8"},
}
FLOAT_FORMS: dict[str, dict[str, Any]] = {
    "float32 weights, KV bfloat16": {"dtype": "float32", "kv_dtype": "bfloat16"},
    "float32 weights, KV int8": {"dtype": "float32", "kv_dtype": "int8"},
}
MADE: tuple[Requantised, ...] = ("BF16", "Q8_0", "Q4_0")


def measure(model: LoadedModel, windows: list[tuple[int, ...]], options: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Prints each line as soon as it is known."""
    found: dict[str, dict[str, float]] = {}

    def show(name: str, distance: Distance, oracle: Distance) -> None:
        ratio = distance.perplexity / oracle.perplexity
        found[name] = {
            "perplexity": distance.perplexity,
            "ratio": ratio,
            "divergence": distance.mean_divergence,
            "same_best": distance.same_best,
        }
        print(
            f"{name:<34} {distance.perplexity:>10.4f} {ratio:>9.5f} {distance.mean_divergence:>10.6f} "
            f"{distance.same_best:>9.1%}",
            flush=True,
        )

    print(f"{'':<34} {'perplexity':>10} {'ratio':>9} {'KL':>10} {'same best':>9}")
    plain = RequantisedSource(model.source, "F32")
    runs = [WindowRun(model.program, model.source, windows, **each, **options) for each in FILE_FORMS.values()]
    runs += [WindowRun(model.program, plain, windows, **each, **options) for each in FLOAT_FORMS.values()]
    oracle, *others = distances(oracle_run(model.program, model.source, windows, **options), runs)
    show("oracle: float32 everywhere", oracle, oracle)
    for name, distance in zip([*FILE_FORMS, *FLOAT_FORMS], others, strict=True):
        show(name, distance, oracle)
    del runs
    for kind in MADE:
        source = RequantisedSource(model.source, kind)
        run = WindowRun(model.program, source, windows, **options)
        oracle, distance = distances(oracle_run(model.program, source, windows, **options), [run])
        show(f"made {kind}", distance, oracle)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--window-tokens", type=int, default=1024)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--isa")
    parser.add_argument("--quick", action="store_true", help="one short window: to see that it runs")
    options = parser.parse_args()
    machine = describe_machine()
    print(machine_line(machine))
    model = load_model(resolve(options.model, home=octavo_home(), download=False))
    token_ids = model.tokenizer_factory().encode(options.text.read_text("utf-8"), add_special_tokens=False)
    sizes = (1, 32) if options.quick else (options.windows, options.window_tokens)
    windows = cut_windows(token_ids, *sizes)
    print(f"{model.name} · {options.text.name} · {sizes[0]} windows of {sizes[1]} tokens", flush=True)
    found = measure(model, windows, {"num_threads": options.threads, "isa": options.isa})
    print(json.dumps({"benchmark": "quality", "machine": machine, "forms": found}, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
