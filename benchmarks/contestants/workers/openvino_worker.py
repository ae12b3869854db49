"""OpenVINO GenAI's continuous batching: python openvino_worker.py MODEL_FOLDER NUM_THREADS KV_GB"""

import sys
import time

from loop import answers, serve

MODEL, NUM_THREADS, KV_GB = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
STREAM = answers()


def main():
    import numpy as np
    import openvino
    import openvino_genai as genai

    config = genai.SchedulerConfig()
    config.cache_size = KV_GB
    config.max_num_batched_tokens = 4096
    config.max_num_seqs = 64
    config.enable_prefix_caching = True
    config.dynamic_split_fuse = True
    pipeline = genai.ContinuousBatchingPipeline(MODEL, config, "CPU", {"INFERENCE_NUM_THREADS": NUM_THREADS})
    counter = [0]

    def run(prompts, num_new_tokens):
        generation = genai.GenerationConfig()
        generation.max_new_tokens = generation.min_new_tokens = num_new_tokens
        generation.ignore_eos, generation.do_sample = True, False
        generation.eos_token_id, generation.stop_token_ids = -1, set()
        handles = []
        for prompt in prompts:
            ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
            handles.append(pipeline.add_request(counter[0], ids, generation))
            counter[0] += 1
        times = [[] for _ in prompts]
        while pipeline.has_non_finished_requests():
            pipeline.step()
            moment = time.perf_counter()
            for handle, stream in zip(handles, times, strict=True):
                while handle.can_read():
                    for output in handle.read().values():
                        stream.extend([moment] * len(output.generated_ids))
        return times

    serve(run, STREAM, {"version": genai.__version__})


if __name__ == "__main__":
    main()
