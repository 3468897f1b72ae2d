"""Vocabulary of a model directory, read from its tokenizer.json without the library that tokenises."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from swiftspec.files.reading import read_foreign_json, shown

_FILE = "tokenizer.json"


def tokenizer_file(directory: Path) -> Path:
    """Path of a model directory's tokenizer.json. ValueError if it is missing."""
    path = directory / _FILE
    if not path.is_file():
        raise ValueError(f"{directory}: {_FILE} is missing")
    return path


def read_vocabulary(directory: Path) -> dict[str, int]:
    """Token id by token, added tokens included. ValueError if tokenizer.json is missing or corrupt."""
    path = tokenizer_file(directory)
    vocabulary: dict[str, int] = {}
    for token, number in _entries(read_foreign_json(path)):
        if not isinstance(token, str) or not isinstance(number, int):
            raise ValueError(f"{path}: not a tokenizer (id of token {shown(token)} is {shown(number)})")
        vocabulary[token] = number
    if not vocabulary:
        raise ValueError(f"{path}: not a tokenizer (model.vocab is missing)")
    return vocabulary


def vocabulary_digest(directory: Path) -> str:
    """SHA-256 of tokens and their ids; empty if they cannot be read."""
    try:
        ordered = sorted(read_vocabulary(directory).items(), key=lambda item: (item[1], item[0]))
    except ValueError:
        return ""
    return hashlib.sha256(json.dumps(ordered).encode()).hexdigest()


def _entries(content: Any) -> Iterator[tuple[Any, Any]]:
    """Tokens and their ids as the file has them, added tokens last."""
    if not (isinstance(content, dict) and isinstance(model := content.get("model"), dict)):
        return
    tokens = model.get("vocab")
    if isinstance(tokens, dict):
        yield from tokens.items()
    elif isinstance(tokens, list):  # of a Unigram model: each with its score, in the order of their ids
        yield from ((token[0] if isinstance(token, list) and token else token, i) for i, token in enumerate(tokens))
    if isinstance(added := content.get("added_tokens"), list):
        yield from ((token.get("content"), token.get("id")) for token in added if isinstance(token, dict))


def check_same_vocabulary(target: Path, draft: Path) -> None:
    """ValueError unless both model directories give every token the same id: only ids are sent between the roles."""
    ours, theirs = read_vocabulary(target), read_vocabulary(draft)
    if ours == theirs:
        return
    token = min((ours.items() ^ theirs.items()), key=lambda item: (item[1], item[0]))[0]
    raise ValueError(
        f"draft {draft} and target {target} have different vocabularies: "
        f"token {token!r} is {theirs.get(token, 'missing')} in the draft and {ours.get(token, 'missing')} in the target"
    )
