"""Train the bundled pair: `python -m tools.demo_training.train --work DIR`.

Four seeded, resumable stages: tokenizer, target (next token on the corpus), continuations (what the target itself
writes), draft (distilled from the target's distribution on both). `tools.demo_training.card` then measures the result.
A stage that finished is skipped; a stage that was stopped goes on from its last checkpoint.
"""

import argparse
import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from tools.demo_training import BUNDLED
from tools.demo_training.corpus import training_sources

VOCAB_SIZE = 4096
END_OF_TEXT = "<|endoftext|>"
CONTEXT = 1024
TARGET_SHAPE = {"hidden_size": 256, "intermediate_size": 896, "num_hidden_layers": 8, "num_attention_heads": 4}
DRAFT_SHAPE = {"hidden_size": 128, "intermediate_size": 448, "num_hidden_layers": 3, "num_attention_heads": 4}
NUM_KV_HEADS = 2
SEED = 20260
TARGET_STEPS = 800
DRAFT_STEPS = 800
TOKENS_PER_STEP = 8192
SHORT_CONTEXT = 512  # most steps; the last ones run at CONTEXT, so that positions beyond are learnt too
LONG_FRACTION = 0.15
CHECKPOINT_EVERY = 25
# Half the bytes are twice the speed only where the processor multiplies bf16.
FAST_DTYPE = torch.bfloat16 if torch.cpu.get_capabilities().get("avx512_bf16") else torch.float32
DECAY_FRACTION = 0.6  # of all steps, at the end: linear to zero; the rest runs at the full rate


_Model = TypeVar("_Model", bound=nn.Module)


def train_tokenizer(path: Path, texts: Iterable[str], *, vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Byte-level BPE in which a newline and the indent after it are one piece, as suits Python."""
    tokenizer = Tokenizer(models.BPE())
    pieces = r"\n+[ ]*| ?[A-Za-z_]+| ?[0-9]| ?[^\sA-Za-z_0-9]+|\s"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pieces), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))
    return tokenizer


def corpus_tokens(tokenizer: Tokenizer, texts: Iterable[str]) -> Tensor:
    """All training texts as one stream of token ids, an end-of-text after each."""
    end = tokenizer.encode(END_OF_TEXT).ids[0]
    ids: list[int] = []
    for encoding in tokenizer.encode_batch(list(texts)):
        ids += [*encoding.ids, end]
    return torch.tensor(ids)


def new_model(shape: Mapping[str, int]) -> LlamaForCausalLM:
    """A randomly initialised Llama with tied head, in fp32."""
    config = LlamaConfig(
        **shape,
        vocab_size=VOCAB_SIZE,
        num_key_value_heads=NUM_KV_HEADS,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)


def optimizers_for(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for the tied embedding and the norms."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return [
        torch.optim.Muon(matrices, lr=0.02, momentum=0.95, weight_decay=0.02),
        torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def context_at(step: int, num_steps: int) -> int:
    """Tokens per training sequence: short first, CONTEXT in the last LONG_FRACTION of the steps."""
    return CONTEXT if step >= (1 - LONG_FRACTION) * num_steps else SHORT_CONTEXT


def crops(stream: Tensor, *, num_crops: int, context: int, step: int) -> Tensor:
    """Random windows (num_crops, context + 1); a function of the step alone, so that resuming changes nothing."""
    generator = torch.Generator().manual_seed(SEED + step)
    starts = torch.randint(0, len(stream) - context - 1, (num_crops,), generator=generator)
    return torch.stack([stream[s : s + context + 1] for s in starts.tolist()])


def progress_steps(title: str, first: int, num_steps: int, loss: Callable[[], float]) -> Iterator[int]:
    """Steps `first`..`num_steps`, shown as a bar with the latest loss."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("loss {task.fields[loss]:.3f}")) as progress:
        task = progress.add_task(title, total=num_steps, completed=first, loss=math.nan)
        for step in range(first, num_steps):
            yield step
            progress.update(task, advance=1, loss=loss())


def fit(
    model: _Model,
    batch: Callable[[int], Tensor],
    loss_of: Callable[[_Model, Tensor], Tensor],
    *,
    title: str,
    num_steps: int,
    checkpoint: Path,
    rate_scale: float = 1.0,
) -> None:
    """Train in place. `loss_of(model, tokens)`: the loss of one batch, tokens (batch, context + 1).

    rate_scale: factor of the learning rates; below 1 for a model that is trained already.
    """
    optimizers = optimizers_for(model)
    first, latest = 0, [math.nan]
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        first = int(state["step"])
    full_rates = [0.02, 3e-3]
    for step in progress_steps(title, first, num_steps, lambda: latest[0]):
        rate = rate_scale * min(1.0, (step + 1) / 30, (num_steps - step) / (DECAY_FRACTION * num_steps))
        for optimizer, full_rate in zip(optimizers, full_rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = full_rate * rate
        loss = loss_of(model, batch(step))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        latest[0] = loss.item()
        if (step + 1) % CHECKPOINT_EVERY == 0 or step + 1 == num_steps:
            saved_state = {
                "model": model.state_dict(),
                "optimizers": [o.state_dict() for o in optimizers],
                "step": step + 1,
            }
            torch.save(saved_state, checkpoint.with_suffix(".partial"))
            checkpoint.with_suffix(".partial").replace(checkpoint)


def fast_arithmetic() -> torch.autocast:
    """Matrix products in FAST_DTYPE."""
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=FAST_DTYPE is torch.bfloat16)


def next_logits(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """Logits (batch, context, vocab) after each token but the last."""
    with fast_arithmetic():
        logits: Tensor = model(input_ids=tokens[:, :-1], use_cache=False).logits
    return logits.float()


def next_token_loss(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """Mean cross-entropy of the next token, nats."""
    return nn.functional.cross_entropy(next_logits(model, tokens).flatten(0, 1), tokens[:, 1:].flatten())


def distillation_loss(target: PreTrainedModel) -> Callable[[PreTrainedModel, Tensor], Tensor]:
    """KL(target || draft) per token: the draft learns the target's distribution, its mistakes included."""

    def loss(draft: PreTrainedModel, tokens: Tensor) -> Tensor:
        with torch.no_grad():
            wanted_logprob = next_logits(target, tokens).log_softmax(-1)
        logprob = next_logits(draft, tokens).log_softmax(-1)
        divergence: Tensor = (wanted_logprob.exp() * (wanted_logprob - logprob)).sum(-1)
        return divergence.mean()

    return loss


@torch.no_grad()
def continuations(target: PreTrainedModel, stream: Tensor, *, num_batches: int, path: Path) -> Tensor:
    """The target's continuations of training text, half greedy, half sampled at temperature 1; (n, CONTEXT + 1) ids."""
    if path.exists():
        loaded: Tensor = torch.load(path, weights_only=True)
        return loaded
    writer = copy.deepcopy(target).to(FAST_DTYPE)
    rows: list[Tensor] = []
    for step in progress_steps("continuations", 0, num_batches, lambda: math.nan):
        torch.manual_seed(SEED + step)
        prompt_length = (32, 96, 160, 224)[step // 2 % 4]
        starts = torch.randint(0, len(stream) - prompt_length, (64,))
        prompts = torch.stack([stream[s : s + prompt_length] for s in starts.tolist()])
        # No early stop: after an end-of-text the target starts another module, as the corpus does.
        written = writer.generate(
            prompts,
            do_sample=step % 2 == 1,
            max_length=SHORT_CONTEXT,
            eos_token_id=None,
            cache_implementation="static",
        )
        rows.append(written.flatten())
    result = torch.cat(rows)
    torch.save(result, path)
    return result


def mixed_batches(
    stream: Tensor, written: Tensor, *, context: Callable[[int], int], tokens_per_step: int
) -> Callable[[int], Tensor]:
    """The tokens of each step, half from the corpus and half from the target's continuations.

    context: tokens per sequence at a step.
    """

    def batch(step: int) -> Tensor:
        half = tokens_per_step // context(step) // 2
        sources = (stream, written)
        return torch.cat([crops(source, num_crops=half, context=context(step), step=step) for source in sources])

    return batch


def save_pretrained(model: PreTrainedModel, tokenizer: Tokenizer, directory: Path) -> None:
    """config.json, model.safetensors in bf16 and tokenizer.json, as any Hugging Face loader expects them."""
    model.to(torch.bfloat16).save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))


def train_pair(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    stream: Tensor,
    *,
    work: Path,
    target_steps: int,
    draft_steps: int,
    continuation_batches: int,
) -> None:
    """Train a target on a stream of token ids, then a draft on the target's distribution; both in place."""

    def text_batch(step: int) -> Tensor:
        context = context_at(step, target_steps)
        return crops(stream, num_crops=TOKENS_PER_STEP // context, context=context, step=step)

    fit(target, text_batch, next_token_loss, title="target", num_steps=target_steps, checkpoint=work / "target.pt")
    target.eval()
    written = continuations(target, stream, num_batches=continuation_batches, path=work / "continuations.pt")

    batch = mixed_batches(
        stream, written, context=lambda step: context_at(step, draft_steps), tokens_per_step=TOKENS_PER_STEP
    )
    fit(draft, batch, distillation_loss(target), title="draft", num_steps=draft_steps, checkpoint=work / "draft.pt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--work", type=Path, required=True, help="folder of the checkpoints; give the same one to resume"
    )
    parser.add_argument("--out", type=Path, default=BUNDLED, help="folder for target/ and draft/")
    parser.add_argument("--target-steps", type=int, default=TARGET_STEPS)
    parser.add_argument("--draft-steps", type=int, default=DRAFT_STEPS)
    parser.add_argument("--continuation-batches", type=int, default=24)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)

    texts = [text for _, text in training_sources()]
    path = args.work / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path)) if path.exists() else train_tokenizer(path, texts)
    torch.manual_seed(SEED)
    target = new_model(TARGET_SHAPE)
    torch.manual_seed(SEED)
    draft = new_model(DRAFT_SHAPE)
    train_pair(
        target,
        draft,
        corpus_tokens(tokenizer, texts),
        work=args.work,
        target_steps=args.target_steps,
        draft_steps=args.draft_steps,
        continuation_batches=args.continuation_batches,
    )
    save_pretrained(target, tokenizer, args.out / "target")
    save_pretrained(draft, tokenizer, args.out / "draft")


if __name__ == "__main__":
    main()
