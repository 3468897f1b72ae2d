"""Prompts of a profile: pieces of the bundled texts, since what a mixture's forward reads depends on its tokens."""

from collections.abc import Callable

import numpy as np

from swiftspec.artifacts.prompts import read_prompts
from swiftspec.files.document import ModelRef
from swiftspec.models.spec import ModelSpec, model_directory
from swiftspec.models.tokenizer import Tokenizer

Prompts = Callable[[int], tuple[int, ...]]  # a prompt of so many tokens, each time another
_SEED = 0


def prompts_for(target: ModelRef, spec: ModelSpec) -> Prompts:
    """Prompts for a target whose vocabulary is that of `spec`; of random tokens if it has no tokenizer."""
    rng = np.random.default_rng(_SEED)
    try:
        tokenizer = Tokenizer(model_directory(target.model))
    except ValueError:
        texts = []
    else:
        prompts = read_prompts(model_directory("demo/prompts") / "trace.jsonl")
        texts = [tokenizer.encode(prompt.text, special_tokens=False) for prompt in prompts]
    text = [token for tokens in texts for token in tokens if token < spec.vocab_size]

    def prompt(length: int) -> tuple[int, ...]:
        if not text:
            return tuple(rng.integers(1, spec.vocab_size, length).tolist())
        first = int(rng.integers(len(text)))
        return tuple(text[(first + index) % len(text)] for index in range(length))

    return prompt
