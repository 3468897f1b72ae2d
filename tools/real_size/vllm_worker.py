"""Worker: vLLM, in an environment that has it; it takes all cores. `python vllm_worker.py DIRECTORY DTYPE`."""

import json
import os
import random
import sys
import time

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

from vllm import LLM, SamplingParams, TokensPrompt  # type: ignore[import-not-found]  # of the other environment


def main() -> None:
    directory, dtype = sys.argv[1:]
    engine = LLM(
        directory,
        dtype=dtype,
        max_model_len=2304,
        max_num_batched_tokens=2304,
        max_num_seqs=8,
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
        enforce_eager=bool(os.environ.get("VLLM_EAGER")),
    ).llm_engine
    draw, last_id = random.Random(0), 0
    for line in sys.stdin:
        num_sequences, prompt_length, new_tokens = map(int, line.split())
        options = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        for _ in range(num_sequences):
            last_id += 1
            text = [draw.randrange(10, 4000) for _ in range(prompt_length)]
            engine.add_request(str(last_id), TokensPrompt(prompt_token_ids=text), options)
        times = []
        while engine.has_unfinished_requests():
            began_s = time.perf_counter()
            engine.step()
            times.append(time.perf_counter() - began_s)
        # Steps that only read prompts come first.
        num_prompts = len(times) - (new_tokens - 1)
        answer = {"prompt_s": sum(times[:num_prompts]), "steps_s": times[num_prompts:]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
