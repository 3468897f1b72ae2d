"""Train the bundled parallel draft from the serial one: `python -m tools.demo_training.train_parallel --work DIR`.

As PARD does (arXiv 2504.18583): after a text's tokens come mask tokens, and the draft learns to propose the next
positions at the masks, all in one forward. A sequence is trained at many anchors at once: mask d of an anchor sees the
text up to the anchor and the masks 1 .. d - 1 of the same anchor. Far masks are trained at fewer anchors (the paper's
conditional drop), because they cost as much and matter less. The loss is the cross-entropy under the target's
distribution, for the text's own rows too, so that the draft stays as good a serial one. Seeded and resumable, as
`tools.demo_training.train`.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedModel

from swiftspec.files.reading import read_json
from swiftspec.files.writing import write_output
from swiftspec.models.spec import model_directory
from tools.demo_training import BUNDLED, train
from tools.demo_training.corpus import training_sources

# The byte 0xff, which no UTF-8 text contains: its id never occurs, and the vocabulary stays that of the target.
MASK_PIECE = "\u00ff"
NUM_MASKS = 7
RETENTION = 0.6  # of a distance's anchors at the next one
STEPS = 260
TOKENS_PER_STEP = 2048  # of text; each step has about three masks for every two of them
SHORT_CONTEXT = 128  # most steps; the last ones run at LONG_CONTEXT
LONG_CONTEXT = 512
RATE_SCALE = 0.4  # of the rates that trained the serial draft
CONTINUATION_BATCHES = 4


def mask_token(tokenizer: Tokenizer) -> int:
    """Id of the mask."""
    token: int | None = tokenizer.token_to_id(MASK_PIECE)
    if token is None:
        raise ValueError(f"the tokenizer has no token {MASK_PIECE!r}")
    return token


class Layout(NamedTuple):
    """Rows of one training sequence: a text of `context` tokens, then masks.

    positions : int array (rows,)
        Of each row in the text; also the row of the text whose next token it proposes.
    sees : bool array (rows, rows)
        Whether a row attends to another.
    """

    positions: Tensor
    sees: Tensor


def masked_layout(context: int, *, num_masks: int, retention: float, generator: torch.Generator) -> Layout:
    """The text's rows, then for every distance the masks at the anchors that are left."""
    text = torch.arange(context)
    anchors, distances, kept = [text], [torch.zeros(context, dtype=torch.long)], text
    for distance in range(1, num_masks + 1):
        kept = kept[kept < context - distance]
        kept = kept[torch.randperm(len(kept), generator=generator)[: round(retention * len(kept))]]
        anchors.append(kept)
        distances.append(torch.full_like(kept, distance))
    anchor, masks = torch.cat(anchors), torch.cat(distances)
    is_text = masks == 0
    sees_text = is_text[None, :] & (anchor[None, :] <= anchor[:, None])
    sees_masks = ~is_text[None, :] & (anchor[None, :] == anchor[:, None]) & (masks[None, :] <= masks[:, None])
    return Layout(anchor + masks, sees_text | sees_masks)


def parallel_loss(
    target: PreTrainedModel, *, mask_token: int, step_of: Callable[[], int]
) -> Callable[[PreTrainedModel, Tensor], Tensor]:
    """Cross-entropy under the target's distribution, the mean over rows of text plus that over masks.

    step_of: the step, which seeds the choice of anchors.
    """

    def loss(draft: PreTrainedModel, tokens: Tensor) -> Tensor:
        context = tokens.shape[1] - 1
        generator = torch.Generator().manual_seed(train.SEED + step_of())
        layout = masked_layout(context, num_masks=NUM_MASKS, retention=RETENTION, generator=generator)
        with torch.no_grad():
            wanted = train.next_logits(target, tokens).softmax(-1)
        num_rows = len(layout.positions)
        masks = tokens.new_full((len(tokens), num_rows - context), mask_token)
        with train.fast_arithmetic():
            logits = draft(
                input_ids=torch.cat((tokens[:, :-1], masks), dim=1),
                position_ids=layout.positions[None].expand(len(tokens), -1),
                attention_mask=layout.sees[None, None].expand(len(tokens), 1, -1, -1),
                use_cache=False,
            ).logits
        surprise = nn.functional.cross_entropy(
            logits.float().flatten(0, 1), wanted[:, layout.positions].flatten(0, 1), reduction="none"
        ).unflatten(0, (len(tokens), num_rows))
        total: Tensor = surprise[:, :context].mean() + surprise[:, context:].mean()
        return total

    return loss


def train_parallel(draft: PreTrainedModel, target: PreTrainedModel, tokenizer: Tokenizer, work: Path) -> None:
    """Train the serial draft into a parallel one, in place."""
    stream = train.corpus_tokens(tokenizer, [text for _, text in training_sources()])
    written = train.continuations(target, stream, num_batches=CONTINUATION_BATCHES, path=work / "continuations.pt")
    latest = [0]

    def batch(step: int) -> Tensor:
        latest[0] = step
        context = LONG_CONTEXT if step >= (1 - train.LONG_FRACTION) * STEPS else SHORT_CONTEXT
        # A quarter of the corpus, the rest what the target writes: that is what the draft will have to propose.
        count = TOKENS_PER_STEP // context
        shares = ((stream, count // 4), (written, count - count // 4))
        return torch.cat([train.crops(text, num_crops=n, context=context, step=step) for text, n in shares])

    train.fit(
        draft,
        batch,
        parallel_loss(target, mask_token=mask_token(tokenizer), step_of=lambda: latest[0]),
        title="parallel draft",
        num_steps=STEPS,
        checkpoint=work / "parallel_draft.pt",
        rate_scale=RATE_SCALE,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of the checkpoints")
    parser.add_argument("--out", type=Path, default=BUNDLED / "parallel_draft")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)

    tokenizer = Tokenizer.from_file(str(model_directory("demo/draft") / "tokenizer.json"))
    target, draft = (
        LlamaForCausalLM.from_pretrained(model_directory(name), dtype=torch.float32, attn_implementation="sdpa")
        for name in ("demo/target", "demo/draft")
    )
    train_parallel(draft.train(), target.eval(), tokenizer, args.work)
    train.save_pretrained(draft, tokenizer, args.out)
    path = args.out / "config.json"
    config = read_json(path)
    config["pard_token"] = mask_token(tokenizer)
    write_output(path, f"{json.dumps(config, indent=2, sort_keys=True)}\n".encode())


if __name__ == "__main__":
    main()
