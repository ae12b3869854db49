"""Asks llama.cpp's own perplexity program about SmolLM2: tests/goldens/smollm2_llama_cpp.json.

    python scripts/make_llama_cpp_perplexity.py LLAMA_PERPLEXITY SmolLM2-135M-Instruct.Q4_1.gguf [TEXT [OUT.json]]

LLAMA_PERPLEXITY is the program of that name, built from a llama.cpp checkout. It cuts the text into windows as the
oracle's golden does, but counts only what is predicted in the second half of each: tokens 513 .. 1,023 of 1,024, each
with at least 513 tokens before it. SmolLM2 has no token that begins every text.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

WINDOW_TOKENS = 1024
NUM_WINDOWS = 5
ROOT = Path(__file__).parents[1]


def main(program: Path, gguf: Path, text: Path, out: Path) -> None:
    sizes = ["-c", str(WINDOW_TOKENS), "-b", str(WINDOW_TOKENS), "--chunks", str(NUM_WINDOWS)]
    done = subprocess.run(
        [str(program), "-m", str(gguf), "-f", str(text), *sizes], capture_output=True, text=True, check=True
    )
    found = re.search(r"Final estimate: PPL = ([0-9.]+)", done.stdout + done.stderr)
    version = re.search(
        r"version: (.*)",
        subprocess.run([str(program), "--version"], capture_output=True, text=True, check=True).stderr,
    )
    if found is None or version is None:
        raise SystemExit(f"{program} printed no perplexity or no version:\n{done.stdout}{done.stderr}")
    result = {
        "made_with": f"llama.cpp {version[1]}",
        "gguf_sha256": hashlib.sha256(gguf.read_bytes()).hexdigest(),
        "text_sha256": hashlib.sha256(text.read_bytes()).hexdigest(),
        "window_tokens": WINDOW_TOKENS,
        "num_windows": NUM_WINDOWS,
        "first_counted_token": WINDOW_TOKENS // 2 + 1,
        "value": float(found[1]),
    }
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"perplexity {found[1]}; wrote {out}")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4, 5):
        raise SystemExit(__doc__)
    defaults = [str(ROOT / "tests/data/sonnets/sonnet.txt"), str(ROOT / "tests/goldens/smollm2_llama_cpp.json")]
    main(*map(Path, [*sys.argv[1:], *defaults[len(sys.argv) - 3 :]]))
