"""Small tokenizers as files: bytes, or the printable characters that fit a tiny model's vocabulary."""

import json
import string
from collections.abc import Iterable
from itertools import count
from pathlib import Path

END, END_ID = "<|end|>", 0
_PRINTABLE = [character for character in string.printable if character in "\n " or not character.isspace()]
_SHOWN_AS_THEY_ARE = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}


def write_byte_tokenizer(directory: Path, *, merges: Iterable[tuple[str, str]] = ()) -> Path:
    """Every byte is a token, from 1 on; id 0 is the special end token; merges add tokens after these."""
    return _write(directory, sorted(_byte_names().values()), list(merges))


def write_printable_tokenizer(directory: Path) -> Path:
    """97 tokens: the end token, printable ASCII, line feed."""
    names = _byte_names()
    return _write(directory, [names[ord(character)] for character in _PRINTABLE], [])


def printable_token(character: str) -> int:
    """Id of a character in that tokenizer."""
    return 1 + _PRINTABLE.index(character)


def _byte_names() -> dict[int, str]:
    """The character that stands for each byte, as in GPT-2: itself, or the next one above 255."""
    others = count(256)
    return {byte: chr(byte if byte in _SHOWN_AS_THEY_ARE else next(others)) for byte in range(256)}


def _write(directory: Path, alphabet: list[str], merges: list[tuple[str, str]]) -> Path:
    vocabulary = {END: END_ID} | {character: number for number, character in enumerate(alphabet, start=1)}
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    content = {
        "version": "1.0",
        "added_tokens": [{"id": END_ID, "content": END, **flags, "special": True}],
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    return directory
