"""Worker: OpenVINO GenAI, in an environment that has it. `python openvino_worker.py GGUF PRECISION THREADS`."""

import json
import random
import sys
import time

import numpy as np
import openvino  # type: ignore[import-not-found]  # of the other environment
import openvino_genai  # type: ignore[import-not-found]  # likewise

CACHE_GB = 2
MOST_BATCHED = 4096


def main() -> None:
    path, precision, num_threads = sys.argv[1:]
    limits = openvino_genai.SchedulerConfig()
    limits.cache_size, limits.max_num_batched_tokens, limits.enable_prefix_caching = CACHE_GB, MOST_BATCHED, False
    properties = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": int(num_threads)}
    pipeline = openvino_genai.ContinuousBatchingPipeline(path, limits, "CPU", properties)
    draw, last_id = random.Random(0), 0
    for line in sys.stdin:
        num_sequences, prompt_length, new_tokens = map(int, line.split())
        options = openvino_genai.GenerationConfig(max_new_tokens=new_tokens, ignore_eos=True, do_sample=False)
        handles = []
        for _ in range(num_sequences):
            text = np.array([[draw.randrange(10, 4000) for _ in range(prompt_length)]])
            last_id += 1
            handles.append(pipeline.add_request(last_id, openvino.Tensor(text), options))
        times = []
        while pipeline.has_non_finished_requests():
            began_s = time.perf_counter()
            pipeline.step()
            times.append(time.perf_counter() - began_s)
        # Steps that only read prompts come first.
        num_prompts = len(times) - (new_tokens - 1)
        answer = {"prompt_s": sum(times[:num_prompts]), "steps_s": times[num_prompts:]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
