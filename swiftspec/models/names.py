"""Informal names of models and devices, and suggestions for unknown ones."""

import re
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Final

from swiftspec.errors import FieldError

# Words that tell neither size nor architecture: publishers, and fine-tuning of the same shape.
_NO_MATTER = frozenset({"meta", "nvidia", "instruct", "it", "chat", "hf", "base"})
_MOST_CHOICES = 8

_HEAD = "is a head of a kind that is not supported; as a draft, those named eagle3, mtp, p-eagle, dflash and dspark are"
ARCHITECTURES: Final = ("llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe")  # that the engine runs
_MIXTURE = "is a mixture of experts that is not known by name; give a directory with its config.json"
_OTHER = "is of an architecture that is not supported; `swiftspec list models` has those that are at its end"
_MAMBA = "has Mamba layers, which cannot be planned"
# Patterns of lower-case names, and why such a model cannot be planned for. The first match counts.
_OUT_OF_SCOPE = (
    (r"eagle|medusa|hydra|\bmtp\b", _HEAD),
    (r"mamba|jamba|nemotron-(h\b|3-|nano-\d+b-v2)|granite-4\.\d-h|falcon-h", _MAMBA),
    (r"gemma-?(3n|4-e\d)", "has embeddings of every layer, which cannot be planned"),
    (r"falcon|gpt-?2|gpt-neo|\bopt-|bloom|grok|dbrx|rwkv|\bphi-[12]\b|step-?3|minimax-m3|deepseek-v4|mimo-v2", _OTHER),
    (r"mixtral|gpt-?oss|\bmoe\b|-a\d+(\.\d+)?b\b|\d+x\d+b|deepseek-(coder-)?(v[2-9]|r1(?!.*distill))", _MIXTURE),
    (r"llama-?4(?!\d)|kimi-k2", _MIXTURE),
)


def resolve(field: str, name: str, known: Mapping[str, Collection[str]]) -> str | None:
    """The table's name that a user means; None if the table has none.

    `H100`, `Llama-3-70B`, `llama3-70b` and `meta-llama/Llama-3.2-1B-Instruct` are all accepted: letters of either case,
    a publisher before a slash, words that do not change a model's shape, and omitted words.

    field: the field or flag of the name, as `--target`. known: every name in the table, with alternative names, such as
    its repository.

    ValueError: if several names in the table match; the message lists them, or a few if there are many.
    """
    if name in known:
        return name
    spellings = {entry: {_words(spelling) for spelling in (entry, *others)} for entry, others in known.items()}
    given = _words(name)
    same = [entry for entry, words in spellings.items() if given in words]
    found = same or [entry for entry, words in spellings.items() if any(_is_short_for(given, word) for word in words)]
    if len(found) > 1:
        choices = f"be {', '.join(found[:-1])} or {found[-1]}"
        if len(found) > _MOST_CHOICES:
            choices = f"be any of {len(found)}, such as {' or '.join(found[:2])}"
        raise FieldError(field, f"{name!r}, which may {choices}", "name one of them")
    return found[0] if found else None


def out_of_scope(name: str) -> str | None:
    """Reason why a model of that name cannot be planned for, as a predicate; None if the name does not tell."""
    lower = name.lower()
    return next((reason for pattern, reason in _OUT_OF_SCOPE if re.search(pattern, lower)), None)


def unknown(
    field: str, name: str, known: Iterable[str], *, otherwise: str | None = None, same_numbers: bool = False
) -> FieldError:
    """Error naming the field, the value and the closest known names; all of them if none is close.

    otherwise: text instead of all names, if there are many. same_numbers: whether a name with another number is that of
    another thing, however close: a100 and a10g, 70b and 405b.
    """
    known = list(known)
    close = get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    if same_numbers:
        close = [one for one in close if _numbers(name) <= _numbers(one)]
    others = otherwise or f"expected one of {', '.join(known)}"
    return FieldError(field, repr(name), f"did you mean {' or '.join(close)}?" if close else others)


def _words(name: str) -> tuple[str, ...]:
    """`Meta-Llama3-8B` -> llama, 3, 8b. A number stays with a single letter before it, so that h100 is one word."""
    pieces = re.split(r"[-_\s]+", name.lower().rpartition("/")[2])
    words = (word for piece in pieces for word in re.split(r"(?<=[a-z]{2})(?=\d)", piece))
    return tuple(word for word in words if word and word not in _NO_MATTER)


def _numbers(name: str) -> set[str]:
    return {word.removesuffix("b") for word in _words(name) if any(map(str.isdecimal, word))}


def _is_short_for(given: tuple[str, ...], words: tuple[str, ...]) -> bool:
    """Whether `given` is `words` with some omitted, but not the first."""
    return bool(given) and given[0] == words[0] and set(given) < set(words)
