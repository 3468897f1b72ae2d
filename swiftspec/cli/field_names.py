"""Fields that the library names in errors, as the flags that users gave."""

import re

__all__ = ["in_flags"]

_OWN = {"num_devices": "--devices", "num_jobs": "--jobs"}  # all others are called alike
_SNAKE = (
    "acceptance_method",
    "accept_noise",
    "draft_quant",
    "max_new_tokens",
    "num_devices",
    "num_jobs",
    "op_tables",
    "output_tokens",
)
_WORDS = (
    "acceptance",
    "backend",
    "context",
    "dataset",
    "device",
    "draft",
    "dtype",
    "engine",
    "policy",
    "quant",
    "ranks",
    "target",
)
# Words of everyday use are fields only where a sentence begins with what they are.
_ANYWHERE = re.compile(rf"\b(?:{'|'.join(_SNAKE)})\b")
_FIRST = re.compile(rf"^(?:{'|'.join(_WORDS)})(?= is (?!placed))")
_SEVERAL = re.compile(r"^policies(?= has )")
_SECOND = re.compile(r"(?<=; )quant(?= is )|(?<=with )(?:dataset|trace)(?= )")


def in_flags(sentence: str) -> str:
    """`num_devices is 99; expected ..` with `--devices`."""
    for pattern in (_ANYWHERE, _FIRST, _SEVERAL, _SECOND):
        sentence = pattern.sub(_flag, sentence)
    return sentence


def _flag(match: re.Match[str]) -> str:
    return _OWN.get(match[0], f"--{match[0].replace('_', '-')}")
