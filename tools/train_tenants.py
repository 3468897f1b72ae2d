"""Train two fine-tunes of the bundled target that share most layers: `python -m tools.train_tenants --out DIR`.

DIR/tests learns the standard library's tests, DIR/prose the text of Python's language reference (as `pydoc` holds it).
Only the last layers learn; all other weights stay those of the target. A few minutes on two cores. Prints the loss of
the target and of both on text of each kind that neither has read.
"""

from __future__ import annotations

import argparse
import pydoc_data.topics
import shutil
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, PreTrainedModel

from swiftspec.cli import console
from swiftspec.models.spec import model_directory
from swiftspec.models.tokenizer import Tokenizer

_BASE = "demo/target"
_CONTEXT, _ROWS = 512, 4  # of a step
_HELD_OUT = 0.05  # of each text, at its end
_CROPS = 12  # that a loss is measured on
_MOST_CHARACTERS = 2_000_000
_RATE = 1e-3


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for tests/ and prose/; neither may exist")
    parser.add_argument("--layers", type=int, default=2, help="last layers that learn (default: 2)")
    parser.add_argument("--steps", type=int, default=120, help="of 2048 tokens (default: 120)")
    chosen = parser.parse_args(arguments)
    texts = {name: _tokens(read()) for name, read in _TEXTS.items()}
    models = {"target": _base()}
    for name, (seen, _) in texts.items():
        models[name] = _fine_tuned(seen, num_layers=chosen.layers, num_steps=chosen.steps, title=name)
        _save(models[name], chosen.out / name)
    console.table(
        "Loss on held-out text, nats per token",
        ["model", *texts],
        [
            [name, *(f"{_loss(model, held_out):.3f}" for _, held_out in texts.values())]
            for name, model in models.items()
        ],
    )
    return 0


def _tests() -> str:
    folder = Path(sysconfig.get_path("stdlib")) / "test"
    if not folder.is_dir():
        raise SystemExit(f"{folder}: not there; this Python was installed without the standard library's tests")
    files = sorted(folder.glob("test_*.py"), key=lambda path: path.stat().st_size)
    return "".join(path.read_text(encoding="utf-8", errors="ignore") for path in files[::3])[:_MOST_CHARACTERS]


def _prose() -> str:
    topics: Mapping[str, str] = pydoc_data.topics.topics
    return "\n".join(topics[name] for name in sorted(topics))


_TEXTS: Mapping[str, Callable[[], str]] = {"tests": _tests, "prose": _prose}


def _tokens(text: str) -> tuple[Tensor, Tensor]:
    """Token ids to learn from, and those held out."""
    tokenizer = Tokenizer(model_directory(_BASE))
    ids = torch.tensor(tokenizer.encode(text, most=len(text)))
    held_out = int(_HELD_OUT * len(ids))
    return ids[:-held_out], ids[-held_out:]


def _base() -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(model_directory(_BASE), dtype=torch.float32)
    return model


def _fine_tuned(text: Tensor, *, num_layers: int, num_steps: int, title: str) -> PreTrainedModel:
    model = _base()
    model.requires_grad_(False)
    learning = list(model.model.layers[-num_layers:].requires_grad_().parameters())
    optimizer = torch.optim.AdamW(learning, lr=_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 10, 1 - step / num_steps)
    )
    for step in range(num_steps):
        loss = _loss_of(model, _crops(text, _ROWS, seed=step))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learning, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            console.say(f"{title}: step {step} of {num_steps}, loss {loss.item():.3f}")
    return model


def _crops(text: Tensor, count: int, *, seed: int) -> Tensor:
    """Windows [count, context + 1] of a text."""
    starts = torch.randint(len(text) - _CONTEXT - 1, (count,), generator=torch.Generator().manual_seed(seed))
    return torch.stack([text[start : start + _CONTEXT + 1] for start in starts.tolist()])


def _loss_of(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    logits: Tensor = model(input_ids=tokens[:, :-1], use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


@torch.no_grad()
def _loss(model: PreTrainedModel, text: Tensor) -> float:
    return _loss_of(model, _crops(text, _CROPS, seed=0)).item()


def _save(model: PreTrainedModel, directory: Path) -> None:
    """As any Hugging Face loader expects it: the target's config and tokenizer, the weights in bf16 as its own are."""
    base = model_directory(_BASE)
    model.to(torch.bfloat16).save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    for name in ("config.json", "tokenizer.json"):
        shutil.copyfile(base / name, directory / name)
    model.float()


if __name__ == "__main__":
    sys.exit(main())
