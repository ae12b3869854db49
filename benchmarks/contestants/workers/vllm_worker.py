"""vLLM on the CPU, its engine stepped in this process: python vllm_worker.py MODEL_FOLDER NUM_THREADS KV_GB"""

import os
import sys
import time

from loop import answers, serve

MODEL, NUM_THREADS, KV_GB = sys.argv[1], int(sys.argv[2]), sys.argv[3]
os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": KV_GB,
    "VLLM_CPU_OMP_THREADS_BIND": f"0-{NUM_THREADS - 1}",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
STREAM = answers()


def main():
    from vllm import LLM, SamplingParams, __version__

    model = LLM(model=MODEL, dtype="bfloat16", max_model_len=4096, max_num_seqs=64, enable_prefix_caching=True, seed=0)
    engine, counter = model.llm_engine, [0]

    def run(prompts, num_new_tokens):
        sampling = SamplingParams(
            temperature=0, max_tokens=num_new_tokens, min_tokens=num_new_tokens, ignore_eos=True, detokenize=False
        )
        names = [str(counter[0] + number) for number in range(len(prompts))]
        counter[0] += len(prompts)
        for name, prompt in zip(names, prompts, strict=True):
            engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
        times = {name: [] for name in names}
        while engine.has_unfinished_requests():
            outputs, moment = engine.step(), time.perf_counter()
            for output in outputs:
                stream = times[output.request_id.split("-")[0]]
                stream.extend([moment] * (len(output.outputs[0].token_ids) - len(stream)))
        return list(times.values())

    serve(run, STREAM, {"version": __version__})


if __name__ == "__main__":
    main()
