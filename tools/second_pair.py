"""Train a second pair to check predictions on: `python -m tools.second_pair --work DIR`. It is not shipped.

This one differs from the bundled pair in family, domain and draft: Qwen3 layers (a norm on queries and keys), English
reference prose (docstrings of installed packages) with its own tokenizer, and a draft (the bundled one is strong) whose
first choice is right about 63 % of the time. Training is that of `tools.demo_training.train`: seeded and resumable.
DIR then holds `target/`, `draft/` and `prompts/{trace,validate}.jsonl`; the prompts are not part of the training text.
"""

import argparse
import ast
import json
import warnings
import zlib
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM

from tools.demo_training import train

PACKAGES = ("matplotlib", "networkx", "numpy", "scipy", "sympy", "torch")
LEAST_CHARACTERS = 300  # of a docstring that is prose rather than a remark
HELD_OUT = 40  # one docstring in 40 is held out, by its checksum
PROMPT_CHARACTERS = 320
NUM_PROMPTS = {"trace": 64, "validate": 24}
VOCAB_SIZE = 2048
# 4.5 M and 0.4 M parameters.
TARGET = {"hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 6, "num_attention_heads": 4}
DRAFT = {"hidden_size": 112, "intermediate_size": 288, "num_hidden_layers": 1, "num_attention_heads": 4}
TARGET_STEPS = 200
DRAFT_STEPS = 120  # with more steps the draft would be right more than 63 % of the time
CONTINUATION_BATCHES = 4


def docstrings() -> Iterator[str]:
    """Docstrings of the installed `PACKAGES` in a fixed order, each once."""
    seen: set[int] = set()
    for package in PACKAGES:
        found = find_spec(package)
        if found is None or found.origin is None:
            continue
        for path in sorted(Path(found.origin).parent.rglob("*.py")):
            for text in _docstrings_of(path):
                if len(text) >= LEAST_CHARACTERS and (checksum := zlib.crc32(text.encode())) not in seen:
                    seen.add(checksum)
                    yield text


def _docstrings_of(path: Path) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other people's sources
        try:
            tree = ast.parse(path.read_text(encoding="utf-8", errors="ignore"))
        except SyntaxError:
            return
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if text := ast.get_docstring(node):
            yield text


def corpus(work: Path) -> tuple[list[str], list[str]]:
    """Texts to train on and texts held out; read from the packages once."""
    path = work / "corpus.json"
    if not path.exists():
        path.write_text(json.dumps(list(docstrings())))
    texts = json.loads(path.read_text())
    is_held_out = [zlib.crc32(text.encode()) % HELD_OUT == 0 for text in texts]
    parts = [
        [text for text, held in zip(texts, is_held_out, strict=True) if held is wanted] for wanted in (False, True)
    ]
    return parts[0], parts[1]


def write_prompts(texts: Sequence[str], directory: Path) -> None:
    """Write beginnings of held-out docstrings, cut after a word; no prompt is both traced and validated."""
    directory.mkdir(exist_ok=True)
    longer = [text for text in texts if len(text) > 2 * PROMPT_CHARACTERS]
    total = sum(NUM_PROMPTS.values())
    chosen = [longer[number * len(longer) // total] for number in range(total)]
    shares = {"validate": chosen[::3][: NUM_PROMPTS["validate"]]}
    shares["trace"] = [text for text in chosen if text not in shares["validate"]]
    for name, part in shares.items():
        prompts = [text[:PROMPT_CHARACTERS].rsplit(" ", 1)[0] for text in part]
        lines = [json.dumps({"id": f"{name}-{number}", "prompt": prompt}) for number, prompt in enumerate(prompts)]
        (directory / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def new_model(shape: dict[str, int]) -> Qwen3ForCausalLM:
    """A randomly initialised Qwen3 with tied head, in fp32."""
    return Qwen3ForCausalLM(
        Qwen3Config(
            **shape,
            head_dim=shape["hidden_size"] // shape["num_attention_heads"],
            vocab_size=VOCAB_SIZE,
            num_key_value_heads=train.NUM_KV_HEADS,
            max_position_embeddings=train.CONTEXT,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=0,
            attn_implementation="sdpa",
        )
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--work", type=Path, required=True, help="folder of checkpoints and the pair; give the same one to resume"
    )
    parser.add_argument("--target-steps", type=int, default=TARGET_STEPS)
    parser.add_argument("--draft-steps", type=int, default=DRAFT_STEPS)
    args = parser.parse_args(arguments)
    work: Path = args.work
    work.mkdir(parents=True, exist_ok=True)
    texts, held_out = corpus(work)
    write_prompts(held_out, work / "prompts")
    path = work / "tokenizer.json"
    tokenizer = (
        Tokenizer.from_file(str(path)) if path.exists() else train.train_tokenizer(path, texts, vocab_size=VOCAB_SIZE)
    )
    stream = train.corpus_tokens(tokenizer, texts)
    torch.manual_seed(train.SEED)
    target, draft = new_model(TARGET), new_model(DRAFT)
    train.train_pair(
        target,
        draft,
        stream,
        work=work,
        target_steps=args.target_steps,
        draft_steps=args.draft_steps,
        continuation_batches=CONTINUATION_BATCHES,
    )
    train.save_pretrained(target, tokenizer, work / "target")
    train.save_pretrained(draft, tokenizer, work / "draft")


if __name__ == "__main__":
    main()
