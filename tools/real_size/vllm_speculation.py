"""Worker: vLLM's speculation, in an environment that has it.

python vllm_speculation.py TARGET DRAFT PROMPTS TOKENS K
"""

import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

from vllm import LLM, SamplingParams, TokensPrompt  # type: ignore[import-not-found]  # of the other environment


def main() -> None:
    target, draft, prompts, new_tokens, num_draft_tokens = sys.argv[1:]
    drafted = {}
    if count := int(num_draft_tokens):
        speculation = {"method": "draft_model", "model": draft, "num_speculative_tokens": count}
        drafted["speculative_config"] = speculation
    engine = LLM(
        target,
        dtype="bfloat16",
        max_model_len=1024,
        max_num_seqs=1,
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
        enforce_eager=bool(os.environ.get("VLLM_EAGER")),
        **drafted,
    )
    options = SamplingParams(temperature=0.0, max_tokens=int(new_tokens), ignore_eos=True, detokenize=False)
    for _ in range(3):
        began_s, tokens = time.perf_counter(), 0
        for prompt in json.loads(Path(prompts).read_text()):
            (found,) = engine.generate(TokensPrompt(prompt_token_ids=prompt), options, use_tqdm=False)
            tokens += len(found.outputs[0].token_ids)
        print(json.dumps({"tokens_per_s": tokens / (time.perf_counter() - began_s)}), flush=True)


if __name__ == "__main__":
    main()
