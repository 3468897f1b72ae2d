"""Measures the bundled models on held-out modules and writes MODEL_CARD.md: `python -m tools.demo_training.card`."""

import argparse
import platform
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.files.document import ModelRef
from swiftspec.files.writing import write_output
from swiftspec.models.draft_kinds import draft_facts
from swiftspec.profiler.acceptance import record_trace
from swiftspec.profiler.guesses_ahead import NUM_AHEAD
from tools.demo_training import BUNDLED, train, train_block, train_head, train_parallel
from tools.demo_training.corpus import HELD_OUT_MODULES, held_out_sources
from tools.demo_training.prompts import traced_prompts, validated_prompts

_MODELS = ("target", "draft", "parallel_draft")
_OTHERS = {"parallel draft": "parallel_draft", "head": "head", "block drafter": "block"}  # beside the draft
_OUTPUT_TOKENS = 256
_SPREAD = 8  # every eighth prompt for those, which take several forwards at every position
_RANKS = 8
_CARD = """# Model card of the bundled models

Three Llama-architecture models in Hugging Face format, so that speculative decoding can be tried without a hub:
a target of {target_millions:.2f} M parameters, a draft of {draft_millions:.2f} M and a parallel draft of the same
size, over one byte-pair tokenizer of {vocab_size} entries. They complete Python source code, as far as models of this
size do.
Context: {context} tokens.

- **Text**: the sources of CPython {python}'s standard library (PSF licence), without tests, codecs' tables and the
  held-out modules: {held_out}.
- **Target**: next-token training, {target_steps} steps of {tokens_per_step} tokens.
- **Draft**: {draft_steps} steps of as many tokens, trained on the target's distribution (KL divergence), half on that
  text and half on what the target itself writes after it, greedily and sampled.
- **Parallel draft** (PARD, arXiv 2504.18583): the draft trained on for {parallel_steps} steps of
  {parallel_tokens_per_step} tokens, a quarter of that text and the rest what the target writes, with up to {num_masks}
  mask tokens after a token. The mask is token {mask_token}, the byte 0xff, which no UTF-8 text contains: `pard_token`
  in its config.json.
- **Head** (EAGLE-3, arXiv 2503.01840), {head_millions:.2f} M parameters beside the target's embedding, which it shares:
  {head_steps} steps of {head_tokens_per_step} tokens, half of that text and half what the target writes; the last
  {unrolled_steps} steps are unrolled {head_depths} times on its own hidden states.
- **Block drafter** (DFlash, arXiv 2602.06036), {block_millions:.2f} M parameters beside the target's embedding:
  {block_steps} steps of {block_tokens_per_step} tokens, half of that text and half what the target writes, in blocks of
  {block_size} with the same mask.
- **Reproduce**: `python -m tools.demo_training.train --work DIR`, then `python -m tools.demo_training.train_parallel`,
  `train_head` and `train_block`, likewise (all seeded and resumable), then `python -m tools.demo_training.card`.

| measured by `python -m tools.demo_training.card` | target | draft | parallel draft |
|---|---|---|---|
| held-out loss, nats per token | {target_loss:.3f} | {draft_loss:.3f} | {parallel_loss:.3f} |

How the draft ranks the target's own greedy output ({num_tokens} tokens after {num_prompts} held-out prompts, fp32):

| draft's choice | {rank_names} |
|---|{rank_rules}|
| share of the target's tokens | {rank_shares} |

Share of positions of that output, on every eighth prompt, from which the first choices for the next n tokens are all
the target's. The draft makes n forwards for them, each on the target's own tokens; so does the head, all but the first
on its own hidden states; the parallel draft and the block drafter make one, at masks:

| n | {length_names} |
|---|{length_rules}|
{survivals}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Figures of the card; losses in nats per token."""

    target_loss: float
    draft_loss: float
    parallel_loss: float
    trace: AcceptanceTrace
    others: dict[str, AcceptanceTrace]


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
        for name in _MODELS
    ]
    prompts = [
        (prompt["id"], tuple(tokenizer.encode(prompt["prompt"]).ids))
        for prompt in traced_prompts() + validated_prompts()
    ]
    record = partial(
        record_trace,
        target=ModelRef(model=str(directory / "target"), dtype="float32"),
        prompts=prompts,
        max_new_tokens=_OUTPUT_TOKENS,
        num_candidates=_RANKS,
        num_threads=torch.get_num_threads(),
        progress=lambda *_: None,
    )
    trace = record(draft=ModelRef(model=str(directory / "draft"), dtype="float32"))
    outputs = [prompt.target_tokens.tolist() for prompt in trace.prompts]
    others = {
        name: record(
            draft=ModelRef(model=str(directory / folder), dtype="float32"),
            prompts=prompts[::_SPREAD],
            outputs=outputs[::_SPREAD],
        )
        for name, folder in _OTHERS.items()
    }
    return Measured(target_loss=losses[0], draft_loss=losses[1], parallel_loss=losses[2], trace=trace, others=others)


def survival(trace: AcceptanceTrace) -> list[float]:
    """Share of output positions from which the first n choices are the target's, for n = 1, 2, ..

    A serial draft's all follow the target's own tokens, since a chain ends at the first that does not.
    """
    alive = []
    for prompt in trace.prompts:
        right = [prompt.draft.tokens[:, 0] == prompt.target_tokens]
        for ahead in range(NUM_AHEAD):
            choices = prompt.draft.tokens if prompt.ahead is None else prompt.ahead.tokens[:, ahead]
            right.append(choices[:, 0] == prompt.target_tokens)
        # Choice n + 1 from position t on is that for position t + n.
        count = len(prompt.target_tokens) - NUM_AHEAD
        along = [one[distance : distance + count] for distance, one in enumerate(right)]
        alive.append(np.logical_and.accumulate(along, axis=0) if count > 0 else np.empty((len(right), 0)))
    return [float(share) for share in np.concatenate(alive, axis=1).mean(axis=1)]


def write_card(directory: Path) -> None:
    """Measure, and write MODEL_CARD.md next to the models."""
    measured = measure(directory)
    sampled = {"draft": replace(measured.trace, prompts=measured.trace.prompts[::_SPREAD]), **measured.others}
    sizes = [LlamaForCausalLM.from_pretrained(directory / name).num_parameters() / 1e6 for name in _MODELS]
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
        parallel_steps=train_parallel.STEPS,
        parallel_tokens_per_step=train_parallel.TOKENS_PER_STEP,
        num_masks=train_parallel.NUM_MASKS,
        mask_token=draft_facts(directory / "parallel_draft").mask_token,
        parallel_loss=measured.parallel_loss,
        head_millions=_millions(directory / "head"),
        head_steps=sum(train_head.STEPS),
        head_tokens_per_step=train_head.TOKENS_PER_STEP,
        unrolled_steps=train_head.STEPS[-1],
        head_depths=train_head.DEPTHS[-1],
        block_millions=_millions(directory / "block"),
        block_steps=train_block.STEPS,
        block_tokens_per_step=train_block.TOKENS_PER_STEP,
        block_size=train_block.BLOCK_SIZE,
        rank_names=_cells(map(str, range(1, _RANKS + 1))),
        rank_rules="|".join("---" for _ in range(_RANKS)),
        rank_shares=_shares(measured.trace.rank_acceptance(_RANKS)),
        length_names=_cells(map(str, range(1, NUM_AHEAD + 2))),
        length_rules="|".join("---" for _ in range(NUM_AHEAD + 1)),
        survivals="\n".join(f"| {name} | {_shares(survival(trace))} |" for name, trace in sampled.items()),
    )
    write_output(directory / "MODEL_CARD.md", card.encode())


def _millions(directory: Path) -> float:
    """Parameters in a checkpoint, millions."""
    return sum(map(torch.numel, load_file(directory / "model.safetensors").values())) / 1e6


def _cells(texts: Iterable[str]) -> str:
    return " | ".join(texts)


def _shares(shares: Iterable[float]) -> str:
    return _cells(f"{share:.3f}" for share in shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=BUNDLED, help="folder with the models")
    write_card(parser.parse_args().dir)


if __name__ == "__main__":
    main()
