"""Text to token ids and back by a model directory's tokenizer.json; its vocabulary, which needs no library."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from swiftspec.files.reading import brief, read_foreign_json, read_input, shown

_FILE = "tokenizer.json"
_MOST_BYTES = 64 << 20  # the largest in use have half of that
_TOKEN_CHARACTERS = 6  # average per token; more than in most texts
_MARGIN = 64
_INCOMPLETE = "\ufffd"  # decoding of bytes that are not a whole character yet


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


class Tokenizer:
    """The tokenizer of a Hugging Face model directory. ValueError if tokenizer.json is missing or corrupt."""

    def __init__(self, directory: Path) -> None:
        from tokenizers import Tokenizer as FileTokenizer  # of the extra `engine`, which a plan does without

        path = tokenizer_file(directory)
        content = read_input(path, most_bytes=_MOST_BYTES)
        try:
            self._tokenizer = FileTokenizer.from_buffer(content)
        except Exception as error:  # tokenizers raises bare Exception for anything that does not parse
            raise ValueError(f"{path}: not a tokenizer ({brief(error)})") from error

    @cached_property
    def special_tokens(self) -> frozenset[int]:
        """Ids of the tokens that have no text."""
        return frozenset(token for token, added in self._tokenizer.get_added_tokens_decoder().items() if added.special)

    def encode(self, text: str, *, most: int | None = None, special_tokens: bool = True) -> tuple[int, ...]:
        """Token ids, with the special tokens that the model expects around a text.

        most: limit above which the caller does not need the tokens. Of a longer text perhaps only the beginning is
            tokenised; the result is then incomplete, and longer than `surely_over(most)`. A token takes about 200 bytes
            here, so a long text would take gigabytes before it is refused.
        special_tokens: whether to add those around the text; those in the text are recognised in any case.
        """
        if most is not None:
            length = _TOKEN_CHARACTERS * most + _MARGIN
            while length < len(text):
                tokens = self._ids(text[:length], special_tokens)
                if len(tokens) > surely_over(most):
                    return tuple(tokens)
                length *= 2
        return tuple(self._ids(text, special_tokens))

    def _ids(self, text: str, special_tokens: bool) -> list[int]:
        """As `encode` of the tokenizers library, which would block all other threads; this one does not."""
        ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=special_tokens)[0].ids
        return ids

    def decode(self, tokens: Sequence[int], *, special_tokens: bool = False) -> str:
        """The text of token ids; special tokens are left out, unless they are wanted."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=not special_tokens)


def surely_over(most: int) -> int:
    """Number of tokens in the beginning of a text that proves that the whole text has more than `most`.

    The last tokens of a truncated text may differ from those of the whole.
    """
    return most + most // 8 + _MARGIN


class TextStream:
    """Text of a token sequence that arrives in pieces; their texts add up to the decoded whole.

    A character may span several byte-level tokens, and a token's text may depend on the token before it. So the text
    since the last boundary is decoded with and without the new tokens, and the difference is returned once it ends in a
    whole character.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._left_out = tokenizer.special_tokens
        self._tokens: list[int] = []
        self._start = 0  # decoding starts here
        self._given = 0  # tokens before this one have been returned

    def push(self, tokens: Iterable[int]) -> str:
        """The text that these tokens complete; may be empty."""
        # Tokens without text would all be decoded again with each that follows.
        self._tokens += [token for token in tokens if token not in self._left_out]
        before, after = self._texts()
        if len(after) <= len(before) or after.endswith(_INCOMPLETE):
            return ""
        self._start, self._given = self._given, len(self._tokens)
        return after[len(before) :]

    def flush(self) -> str:
        """The rest, whether or not it ends in a whole character."""
        before, after = self._texts()
        self._start = self._given = len(self._tokens)
        return after[len(before) :]

    def name(self, token: int) -> str:
        """A token by itself: its text, or that by which a special one is written."""
        return self._tokenizer.decode((token,), special_tokens=True)

    def _texts(self) -> tuple[str, str]:
        given, everything = self._tokens[self._start : self._given], self._tokens[self._start :]
        return self._tokenizer.decode(given), self._tokenizer.decode(everything)
