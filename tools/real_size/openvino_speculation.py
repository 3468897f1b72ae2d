"""Worker: OpenVINO GenAI's speculation, in an environment that has it.

python openvino_speculation.py TARGET_GGUF DRAFT_GGUF PRECISION PROMPTS TOKENS K
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import openvino  # type: ignore[import-not-found]  # of the other environment
import openvino_genai  # type: ignore[import-not-found]  # likewise

CACHE_GB = 2


def converted(gguf: str) -> str:
    """A folder with the model in OpenVINO's own format, which a draft has to be in, written once."""
    folder = Path(gguf).with_suffix(".openvino")
    if not (folder / "openvino_model.xml").exists():
        folder.mkdir(exist_ok=True)
        os.link(gguf, folder / "model.gguf")
        openvino_genai.LLMPipeline(str(folder / "model.gguf"), "CPU", enable_save_ov_model=True)
        (folder / "model.gguf").unlink()
    return str(folder)


def main() -> None:
    target, draft, precision, prompts, new_tokens, num_draft_tokens = sys.argv[1:]
    limits = openvino_genai.SchedulerConfig()
    limits.cache_size, limits.enable_prefix_caching = CACHE_GB, False
    properties = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": len(os.sched_getaffinity(0))}
    options = openvino_genai.GenerationConfig(max_new_tokens=int(new_tokens), ignore_eos=True, do_sample=False)
    drafted = {}
    if count := int(num_draft_tokens):
        drafted["draft_model"] = openvino_genai.draft_model(converted(draft), "CPU", **properties)
        options.num_assistant_tokens = count
    pipeline = openvino_genai.LLMPipeline(converted(target), "CPU", scheduler_config=limits, **drafted, **properties)
    for _ in range(3):
        began_s, tokens = time.perf_counter(), 0
        for prompt in json.loads(Path(prompts).read_text()):
            ids = np.array([prompt])
            text = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
            tokens += len(pipeline.generate(text, options).tokens[0])
        print(json.dumps({"tokens_per_s": tokens / (time.perf_counter() - began_s)}), flush=True)


if __name__ == "__main__":
    main()
