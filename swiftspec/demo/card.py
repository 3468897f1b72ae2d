"""Measures the bundled pair on held-out modules and writes MODEL_CARD.md: `python -m swiftspec.demo.card`."""

import argparse
import platform
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from swiftspec.artifacts.document import ModelRef
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.demo import train
from swiftspec.demo.corpus import HELD_OUT_MODULES, held_out_sources
from swiftspec.demo.prompts import traced_prompts, validated_prompts
from swiftspec.files.writing import write_output
from swiftspec.profiler.acceptance import record_trace

__all__ = ["main"]

_OUTPUT_TOKENS = 256
_RANKS = 8
_CARD = """# Model card of the bundled pair

Two Llama-architecture models in Hugging Face format, so that speculative decoding can be tried without a hub:
a target of {target_millions:.2f} M parameters and a draft of {draft_millions:.2f} M, over one byte-pair tokenizer
of {vocab_size} entries. They complete Python source code, as far as models of this size do.
Context: {context} tokens.

- **Text**: the sources of CPython {python}'s standard library (PSF licence), without tests, codecs' tables and the
  held-out modules: {held_out}.
- **Target**: next-token training, {target_steps} steps of {tokens_per_step} tokens.
- **Draft**: {draft_steps} steps of as many tokens, trained on the target's distribution (KL divergence), half on that
  text and half on what the target itself writes after it, greedily and sampled.
- **Reproduce**: `python -m swiftspec.demo.train --work DIR` (seeded, resumable), then `python -m swiftspec.demo.card`.

| measured by `python -m swiftspec.demo.card` | target | draft |
|---|---|---|
| held-out loss, nats per token | {target_loss:.3f} | {draft_loss:.3f} |

How the draft ranks the target's own greedy output ({num_tokens} tokens after {num_prompts} held-out prompts, fp32):

| draft's choice | {rank_names} |
|---|{rank_rules}|
| share of the target's tokens | {rank_shares} |
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Figures of the card; losses in nats per token."""

    target_loss: float
    draft_loss: float
    trace: AcceptanceTrace


@torch.inference_mode()
def held_out_loss(model: LlamaForCausalLM, tokenizer: Tokenizer) -> float:
    """Mean next-token loss over the held-out modules, in windows of the whole context."""
    total, count = 0.0, 0
    for _, text in held_out_sources():
        ids = torch.tensor(tokenizer.encode(text).ids)
        for window in ids.split(train.CONTEXT):
            if len(window) > 1:
                loss = model(input_ids=window[None], labels=window[None]).loss.item()
                total += loss * (len(window) - 1)
                count += len(window) - 1
    return total / count


def measure(directory: Path) -> Measured:
    """Losses and the acceptance trace of the pair in `directory`."""
    tokenizer = Tokenizer.from_file(str(directory / "target" / "tokenizer.json"))
    losses = [
        held_out_loss(LlamaForCausalLM.from_pretrained(directory / name, dtype=torch.float32), tokenizer)
        for name in ("target", "draft")
    ]
    prompts = [
        (prompt["id"], tuple(tokenizer.encode(prompt["prompt"]).ids))
        for prompt in traced_prompts() + validated_prompts()
    ]
    trace = record_trace(
        target=ModelRef(model=str(directory / "target"), dtype="float32"),
        draft=ModelRef(model=str(directory / "draft"), dtype="float32"),
        prompts=prompts,
        max_new_tokens=_OUTPUT_TOKENS,
        num_candidates=_RANKS,
        num_threads=torch.get_num_threads(),
        progress=lambda *_: None,
    )
    return Measured(target_loss=losses[0], draft_loss=losses[1], trace=trace)


def write_card(directory: Path) -> None:
    """Measure, and write MODEL_CARD.md next to the models."""
    measured = measure(directory)
    sizes = [LlamaForCausalLM.from_pretrained(directory / name).num_parameters() / 1e6 for name in ("target", "draft")]
    shares = measured.trace.rank_acceptance(_RANKS)
    card = _CARD.format(
        target_millions=sizes[0],
        draft_millions=sizes[1],
        vocab_size=train.VOCAB_SIZE,
        context=train.CONTEXT,
        python=platform.python_version(),
        held_out=", ".join(HELD_OUT_MODULES),
        target_steps=train.TARGET_STEPS,
        draft_steps=train.DRAFT_STEPS,
        tokens_per_step=train.TOKENS_PER_STEP,
        target_loss=measured.target_loss,
        draft_loss=measured.draft_loss,
        num_tokens=measured.trace.num_tokens,
        num_prompts=len(measured.trace.prompts),
        rank_names=" | ".join(str(rank + 1) for rank in range(_RANKS)),
        rank_rules="|".join("---" for _ in range(_RANKS)),
        rank_shares=" | ".join(f"{share:.3f}" for share in shares),
    )
    write_output(directory / "MODEL_CARD.md", card.encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path(__file__).parent, help="folder with target/ and draft/")
    write_card(parser.parse_args().dir)


if __name__ == "__main__":
    main()
