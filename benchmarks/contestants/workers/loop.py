"""What every worker does: make the prompts, take one JSON request a line, answer with one JSON line of timings.

Runs in the environment of whichever server is measured, so it needs nothing but Python. A worker gives
`run(prompts, num_new_tokens)`, which submits all prompts at once and returns, for each, the time each of its tokens
came (time.perf_counter()). Standard output belongs to the answers: what a library prints goes to standard error.
"""

import json
import os
import random
import sys
import time

LOW, HIGH = 100, 49_000  # prompts are random ids in [LOW, HIGH): no special token, inside every vocabulary used
WARM_UP = ((1, 16, 2), (4, 64, 8))


def make_prompts(request):
    """request: num_streams, num_prompt_tokens, num_shared_tokens, seed, prefix_seed -> lists of ids.

    The same for every contestant; a new seed shares nothing with an old one, a kept prefix_seed keeps the prefix.
    """
    own = random.Random(f"own {request['seed']}")
    shared = _ids(random.Random(f"prefix {request['prefix_seed']}"), request["num_shared_tokens"])
    num_own = request["num_prompt_tokens"] - len(shared)
    return [shared + _ids(own, num_own) for _ in range(request["num_streams"])]


def timings(prompts, times, start):
    """Prefill ends with the last stream's first token; decode counts what came after it, of all streams."""
    prefilled, end = max(stream[0] for stream in times), max(stream[-1] for stream in times)
    return {
        "prefill_seconds": prefilled - start,
        "decode_seconds": end - prefilled,
        "wall_seconds": end - start,
        "num_prompt_tokens": sum(map(len, prompts)),
        "num_decoded_tokens": sum(moment > prefilled for stream in times for moment in stream),
    }


def timed(run, request):
    """Raises RuntimeError where a stream is not as long as was asked for: its rate would mean nothing."""
    prompts = make_prompts(request)
    start = time.perf_counter()
    times = run(prompts, request["num_new_tokens"])
    wrong = [len(stream) for stream in times if len(stream) != request["num_new_tokens"]]
    if wrong:
        raise RuntimeError(f"asked for {request['num_new_tokens']} tokens a stream, got {wrong}")
    return timings(prompts, times, start)


def answers():
    """The stream of answers; from now on print() and C libraries write to standard error."""
    stream = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return stream


def serve(run, stream, facts):
    """Says that it is ready, warms up, then answers until standard input ends."""
    print(json.dumps(facts), file=stream)
    for number, (streams, prompt, new) in enumerate(WARM_UP):
        request = {
            "num_streams": streams,
            "num_prompt_tokens": prompt,
            "num_shared_tokens": 0,
            "num_new_tokens": new,
            "seed": f"warm-up {number}",
            "prefix_seed": "",
        }
        began = time.perf_counter()
        timed(run, request)
        if number == 0:
            print(json.dumps({"first_answer_seconds": time.perf_counter() - began}), file=stream)
    print(json.dumps({"warm": True}), file=stream)
    for line in sys.stdin:
        try:
            answer = timed(run, json.loads(line))
        except Exception as error:  # the program that asked decides whether this ends the comparison
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=stream)


def _ids(draw, count):
    return [draw.randrange(LOW, HIGH) for _ in range(count)]
