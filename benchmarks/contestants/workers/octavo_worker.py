"""octavo's engine stepped in this process: python octavo_worker.py MODEL NUM_THREADS KV_GB QUANTIZATION|none"""

import sys
import time

from loop import answers, serve

from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.engine_request import EngineRequest, new_request_id
from octavo.sampling_params import SamplingParams

MODEL, NUM_THREADS, KV_GB, QUANTIZATION = sys.argv[1:5]
STREAM = answers()


def main():
    options = {
        "model": MODEL,
        "num_threads": int(NUM_THREADS),
        "kv_cache_memory_bytes": int(KV_GB) * 10**9,
        "max_model_len": 4096,
        "max_num_seqs": 64,
        "quantization": None if QUANTIZATION == "none" else QUANTIZATION,
    }
    engine = build_engine(EngineConfig.from_options(options))

    def run(prompts, num_new_tokens):
        sampling = SamplingParams(temperature=0.0, max_tokens=num_new_tokens, ignore_eos=True)
        times = {}
        for prompt in prompts:
            name = new_request_id()
            times[name] = []
            engine.add_request(EngineRequest(name, tuple(prompt), sampling))
        while engine.has_unfinished:
            deltas, moment = engine.step(), time.perf_counter()
            for delta in deltas:
                times[delta.request_id].extend([moment] * len(delta.token_ids))
        return list(times.values())

    info = engine.info
    serve(run, STREAM, {"version": f"{info.weight_form} {info.isa}", "weight_bytes": info.weight_bytes})


if __name__ == "__main__":
    main()
