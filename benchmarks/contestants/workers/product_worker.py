"""octavo's matrix products alone: python product_worker.py MODEL NUM_THREADS QUANTIZATION|none

The model's own matrices in the order of its program, each fed with the latest buffer as wide as it needs, nothing
between them: what a step would take if everything else were free. {"num_sequences": n, "num_tokens": m} runs n
sequences of m tokens each in one step, the head once a sequence, and is answered by {"seconds": [...]}.
"""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

from loop import answers

from octavo.core.block import BlockId, SeqId
from octavo.core.scheduler_output import AddedRow, SchedulerOutput
from octavo.executors.cpu import CpuExecutor
from octavo.loading.load_model import load_model
from octavo.loading.model_files import resolve
from octavo.program import ops
from octavo.sampling_params import SamplingParams

MODEL, NUM_THREADS, QUANTIZATION = sys.argv[1:4]
BLOCK_SIZE, MAX_TOKENS, MAX_SEQUENCES = 16, 512, 64
NUM_RUNS = 9
STREAM = answers()


def only_products(program):
    """`program` without all that is neither embedding nor product."""
    latest, kept, buffers = {}, [], {}
    for op in program.ops:
        if isinstance(op, ops.Linear):
            op = replace(op, x=latest[program.parameters[op.weight][1]], bias=None)
        elif isinstance(op, ops.SelectRows):
            op = replace(op, x=latest[program.buffers[op.out]])
        elif not isinstance(op, ops.Embed | ops.Output):
            continue
        kept.append(op)
        if not isinstance(op, ops.Output):
            buffers[op.out] = program.buffers[op.out]
            latest[buffers[op.out]] = op.out
    return replace(program, ops=tuple(kept), buffers=buffers)


def plan(step, num_sequences, num_tokens):
    """Every sequence is new: its tokens run at once and one is drawn."""
    sequences = tuple(SeqId(step * MAX_SEQUENCES + number) for number in range(num_sequences))
    blocks = -(-num_tokens // BLOCK_SIZE)
    added = [
        AddedRow(
            seq_id=sequence,
            token_ids=tuple(1000 + 7 * position for position in range(num_tokens)),
            num_prompt_tokens=num_tokens,
            block_tables=(tuple(BlockId(1 + number * blocks + block) for block in range(blocks)),),
            sampling=SamplingParams(temperature=0.0),
            seed=0,
            sample_index=0,
            end_token_ids=(),
            num_top=None,
        )
        for number, sequence in enumerate(sequences)
    ]
    return SchedulerOutput(
        step=step,
        removed=(),
        added=tuple(added),
        block_updates=(),
        copies=(),
        seq_ids=sequences,
        num_computed_tokens=(0,) * num_sequences,
        num_scheduled_tokens=(num_tokens,) * num_sequences,
        num_samples=(1,) * num_sequences,
        first_write=(0,) * num_sequences,
    )


def removal(made):
    """Forgets the sequences of `made` outside of what is timed."""
    nothing = {"seq_ids": (), "num_computed_tokens": (), "num_scheduled_tokens": (), "num_samples": ()}
    return replace(made, removed=made.seq_ids, added=(), first_write=(), **nothing)


def main():
    model = load_model(resolve(MODEL, home=Path()))
    executor = CpuExecutor(
        program=only_products(model.program),
        source=model.source,
        num_blocks=MAX_TOKENS // BLOCK_SIZE + MAX_SEQUENCES + 1,
        block_size=BLOCK_SIZE,
        max_num_seqs=MAX_SEQUENCES,
        max_num_batched_tokens=MAX_TOKENS,
        max_model_len=MAX_TOKENS,
        quantization=None if QUANTIZATION == "none" else QUANTIZATION,
        num_threads=int(NUM_THREADS),
    )
    print(json.dumps({"warm": True}), file=STREAM)
    for line in sys.stdin:
        request, seconds = json.loads(line), []
        for step in range(NUM_RUNS + 1):
            made = plan(step, request["num_sequences"], request["num_tokens"])
            start = time.perf_counter()
            executor.execute(made)
            seconds.append(time.perf_counter() - start)
            executor._rows.apply(removal(made))
        print(json.dumps({"seconds": seconds[1:]}), file=STREAM)


if __name__ == "__main__":
    main()
