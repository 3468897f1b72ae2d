"""Worker: this project's engine. `python -m tools.real_size.ours DIRECTORY DTYPE THREADS`."""

import json
import random
import sys
import time

import torch

from swiftspec.engine.model.forward_batch import Chunk, ForwardBatch
from swiftspec.engine.model.runner import ModelRunner
from swiftspec.files.document import ModelRef
from swiftspec.policies.effects import ForwardKind

MOST_SEQUENCES, MAX_CONTEXT = 8, 2304
LAST_TOKEN = 4000


@torch.inference_mode()
def main() -> None:
    directory, dtype, num_threads = sys.argv[1:]
    torch.set_num_threads(int(num_threads))
    reference = ModelRef(model=directory, dtype=dtype)
    model = ModelRunner.load(reference, max_context=MAX_CONTEXT, tree_slots=8, num_sequences=MOST_SEQUENCES)
    draw = random.Random(0)
    for line in sys.stdin:
        num_sequences, prompt_length, new_tokens = map(int, line.split())
        texts = [tuple(draw.randrange(10, LAST_TOKEN) for _ in range(prompt_length)) for _ in range(num_sequences)]
        began_s = time.perf_counter()
        latest = [step(model, [(sequence, text)])[0] for sequence, text in enumerate(texts)]
        prompt_s, steps_s = time.perf_counter() - began_s, []
        for _ in range(new_tokens - 1):
            began_s = time.perf_counter()
            latest = step(model, [(sequence, (token,)) for sequence, token in enumerate(latest)])
            steps_s.append(time.perf_counter() - began_s)
        for sequence in range(num_sequences):
            model.reset(sequence)
        print(json.dumps({"prompt_s": prompt_s, "steps_s": steps_s}), flush=True)


def step(model: ModelRunner, texts: list[tuple[int, tuple[int, ...]]]) -> list[int]:
    """The likeliest token after each sequence's new tokens."""
    batch = ForwardBatch(ForwardKind.EXACT, tuple(Chunk(sequence, tokens) for sequence, tokens in texts))
    return [int(logits[-1].argmax()) for logits in model.forward(batch).logits]


if __name__ == "__main__":
    main()
