"""The bundled prompts: beginnings of functions and classes of held-out modules. `python -m tools.demo_training.prompts`

There are two files, from different modules, so that no prompt is both traced and validated.
"""

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from swiftspec.files.writing import write_output
from tools.demo_training import BUNDLED
from tools.demo_training.corpus import HELD_OUT_MODULES, held_out_sources

TRACED_MODULES = ("calendar", "fractions", "heapq", "pprint", "statistics", "textwrap", "timeit", "wave")
VALIDATED_MODULES = tuple(name for name in HELD_OUT_MODULES if name not in TRACED_MODULES)
# Tokens per round differ by a third between prompts: it takes a hundred to know their mean to 3 %.
TRACED_PER_MODULE = 16
VALIDATED_PER_MODULE = 6
_CHARACTERS = 320  # about 90 tokens; the first, broken line is cut off
_DEFINITION = re.compile(r"^(?:    )?(?:async def|def|class) \w+.*:\n", re.MULTILINE)


def module_prompts(modules: Sequence[str], *, most: int) -> Iterator[dict[str, str]]:
    """At most `most` texts per module, evenly spread over it, each ending with the line of a definition."""
    texts = {name.removesuffix(".py"): text for name, text in held_out_sources()}
    for module in modules:
        ends = [match.end() for match in _DEFINITION.finditer(texts[module]) if match.end() >= _CHARACTERS]
        count = min(most, len(ends))
        for number in range(count):
            end = ends[number * (len(ends) - 1) // (count - 1)]
            text = texts[module][end - _CHARACTERS : end]
            yield {"id": f"{module}-{number}", "prompt": text[text.index("\n") + 1 :]}


def traced_prompts() -> list[dict[str, str]]:
    """Prompts that the demo's trace is recorded on."""
    return list(module_prompts(TRACED_MODULES, most=TRACED_PER_MODULE))


def validated_prompts() -> list[dict[str, str]]:
    """Prompts that the demo's plan is validated on."""
    return list(module_prompts(VALIDATED_MODULES, most=VALIDATED_PER_MODULE))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=BUNDLED / "prompts")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name, prompts in (("trace", traced_prompts()), ("validate", validated_prompts())):
        lines = [json.dumps(prompt) for prompt in prompts]
        write_output(args.out / f"{name}.jsonl", "\n".join([*lines, ""]).encode())


if __name__ == "__main__":
    main()
