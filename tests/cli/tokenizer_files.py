"""Small tokenizers as files: bytes, or the printable characters that fit a tiny model's vocabulary."""

import string
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

END = "<|end|>"
_PRINTABLE = [character for character in string.printable if character in "\n " or not character.isspace()]


def write_byte_tokenizer(directory: Path, *, merges: Iterable[tuple[str, str]] = ()) -> Path:
    """Every byte is a token, from 1 on; id 0 is the special end token; merges add tokens after these."""
    return _write(directory, sorted(pre_tokenizers.ByteLevel.alphabet()), list(merges))


def write_printable_tokenizer(directory: Path) -> Path:
    """97 tokens: the end token, printable ASCII, line feed."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return _write(directory, [level.pre_tokenize_str(character)[0][0] for character in _PRINTABLE], [])


def printable_token(character: str) -> int:
    """Id of a character in that tokenizer."""
    return 1 + _PRINTABLE.index(character)


def _write(directory: Path, alphabet: list[str], merges: list[tuple[str, str]]) -> Path:
    vocabulary = {END: 0} | {character: number for number, character in enumerate(alphabet, start=1)}
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True)])
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory
