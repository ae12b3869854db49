"""Question: what do grammars cost: compiling one, and the masks of 16 constrained rows as a share of their step?

    python benchmarks/structured.py [--model smollm2] [--tools FILE] [--repeats 3] [--quick] [--check]

Compiles every tool's schema of a JSON lines file (`name` and `parameters` in each line; by default the 16 of
data/tool_schemas.jsonl) with the model's own tokenizer, and checks each as a server's worker does. Then keeps 16 rows
busy, each held to another of the schemas, and times what the constraints take of every step that decodes 16 rows: as
JSON, and as free text in which one of four strict tools may be called; and of twelve, which is more than is followed on
the step loop itself. Drawn with temperature 1, fixed seeds. Medians, and the 99th percentile where there are enough
values; one JSON line last.

The limit, 5% of a step, is the one that structured outputs promise.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bounds import Bounds, finish, model_parser, show
from octavo.bench.machine import describe_machine, machine_line
from octavo.bench.measure import Figure
from octavo.config import EngineConfig
from octavo.constraints.grammar import GrammarCompiler, check_grammar
from octavo.constraints.table import ConstraintTable, StepMasks
from octavo.core.block import SeqId
from octavo.core.scheduler_output import SchedulerOutput
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine
from octavo.engine.engine_request import EngineRequest, new_request_id
from octavo.grammar_spec import GrammarSpec
from octavo.sampling_params import SamplingParams
from octavo.server.tools.held import of_answers
from octavo.server.tools.speech import Speech

NUM_ROWS = 16
TOOLS = Path(__file__).parent / "data" / "tool_schemas.jsonl"
LIMITS: Bounds = {"masks, 16 rows of JSON": (None, 5.0), "masks, 16 rows of text with calls": (None, 5.0)}
PROMPT = "Say something about the weather, in any form you like."


class TimedTable:
    """A ConstraintTable and the seconds that it took since `reset`."""

    def __init__(self, table: ConstraintTable) -> None:
        self._table = table
        self.seconds = 0.0
        self.num_rows = 0  # that the latest step masked

    def __len__(self) -> int:
        return len(self._table)

    def begin(self, plan: SchedulerOutput) -> StepMasks | None:
        began = time.perf_counter()
        masks = self._table.begin(plan)
        self.seconds += time.perf_counter() - began
        self.num_rows = len(masks.of) if masks is not None and not plan.added else 0
        return masks

    def accept(self, drawn: Iterable[tuple[SeqId, tuple[int, ...]]]) -> set[SeqId]:
        began = time.perf_counter()
        over = self._table.accept(drawn)
        self.seconds += time.perf_counter() - began
        return over


def measure_compiling(engine: Engine, specs: Sequence[GrammarSpec]) -> list[Figure]:
    checking, compiling = Figure("check, as a worker does", "ms"), Figure("compile for the tokenizer", "ms")
    compiler = GrammarCompiler(engine.tokenizer, engine.info.vocab_size, [engine.tokenizer.eos_token_id or 0])
    compiler.compile(GrammarSpec("regex", "a"))  # builds the tokenizer's table
    for spec in specs:
        for figure, work in ((checking, check_grammar), (compiling, compiler.compile)):
            began = time.perf_counter()
            work(spec)
            figure.values.append(1e3 * (time.perf_counter() - began))
    return [part for figure in (checking, compiling) for part in (figure, percentile(figure))]


def percentile(figure: Figure) -> Figure:
    return Figure(f"{figure.name}, p99", figure.unit, [float(np.percentile(figure.values, 99))])


def measure_masks(
    engine: Engine, specs: Sequence[GrammarSpec], name: str, repeats: int, num_steps: int
) -> list[Figure]:
    """Share of the steps that decode NUM_ROWS constrained rows, and milliseconds of them."""
    timed = TimedTable(engine._constraints)
    share, cost = Figure(name, "%"), Figure(f"{name}, a step", "ms")
    prompt = tuple(engine.tokenizer.encode(PROMPT))
    for repeat in range(repeats):
        engine._constraints = timed  # type: ignore[assignment]
        seconds = mask_seconds = 0.0
        numbers, num_done, num_open = itertools.count(repeat * 1000), 0, 0
        while num_done < num_steps:
            for number in itertools.islice(numbers, NUM_ROWS - num_open):
                grammar = specs[number % len(specs)]
                sampling = SamplingParams(max_tokens=64, temperature=1.0, seed=number, grammar=grammar)
                engine.add_request(EngineRequest(new_request_id(), prompt, sampling))
            num_open = NUM_ROWS
            timed.seconds, began = 0.0, time.perf_counter()
            deltas = engine.step()
            if timed.num_rows == NUM_ROWS:
                seconds += time.perf_counter() - began
                mask_seconds += timed.seconds
                num_done += 1
            num_open -= sum(delta.finish_reason is not None for delta in deltas)
        share.values.append(100 * mask_seconds / seconds)
        cost.values.append(1e3 * mask_seconds / num_done)
        engine._constraints = timed._table
        drain(engine)
    return [share, cost]


def drain(engine: Engine) -> None:
    while engine.has_unfinished:
        engine.step()


def held_calls(tools: dict[str, Any], num_tools: int) -> list[GrammarSpec]:
    """Text that may call one of so many tools, all of them strict."""
    names = list(tools)
    speech = Speech.of("", "hermes")
    made = []
    for first in range(0, len(names), 4):
        some = {name: tools[name] for name in (names + names)[first : first + num_tools]}
        source = of_answers(speech, some, some, {}, is_thinking=False, max_calls=None)
        made.append(GrammarSpec("grammar", source, is_ours=True))
    return made


def main() -> int:
    parser: argparse.ArgumentParser = model_parser(__doc__)
    parser.add_argument("--tools", type=Path, default=TOOLS, metavar="FILE", help="JSON lines with name and parameters")
    parser.set_defaults(repeats=3)
    options = parser.parse_args()
    lines = [json.loads(line) for line in options.tools.read_text().splitlines()]
    tools = {f"{line['name']}_{number}": line["parameters"] for number, line in enumerate(lines)}
    specs = [GrammarSpec("json_schema", json.dumps(schema)) for schema in tools.values()]
    machine = describe_machine()
    print(machine_line(machine), flush=True)
    config = EngineConfig(
        model=options.model, max_model_len=256, max_num_seqs=NUM_ROWS, num_threads=options.threads, isa=options.isa
    )
    engine = build_engine(config)
    try:
        figures = measure_compiling(engine, specs)
        show(figures, LIMITS)
        repeats, num_steps = (1, 20) if options.quick else (options.repeats, 200)
        for name, grammars in (
            ("masks, 16 rows of JSON", specs),
            ("masks, 16 rows of text with calls", held_calls(tools, 4)),
            ("masks, 16 rows of text with 12 tools", held_calls(tools, 12)),
        ):
            found = measure_masks(engine, grammars, name, repeats, num_steps)
            show(found, LIMITS)
            figures += found
    finally:
        engine.close()
    return finish("structured", machine, figures, LIMITS, check=options.check)


if __name__ == "__main__":
    sys.exit(main())
