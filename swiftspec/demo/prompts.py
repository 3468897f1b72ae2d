"""The bundled prompts: beginnings of functions and classes of the held-out modules. `python -m swiftspec.demo.prompts`

Two files from different modules: what is traced is not what is validated.
"""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path

from swiftspec.demo.corpus import held_out_sources

__all__ = ["TRACED_MODULES", "VALIDATED_MODULES", "module_prompts"]

TRACED_MODULES = ("calendar", "fractions", "heapq", "pprint", "statistics", "textwrap", "timeit", "wave")
VALIDATED_MODULES = ("cmd", "csv", "graphlib", "queue", "shlex", "tabnanny")
PROMPTS_PER_MODULE = 4
_CHARACTERS = 320  # about 90 tokens; the first, broken line is cut off
_DEFINITION = re.compile(r"^(?:    )?(?:async def|def|class) \w+.*:\n", re.MULTILINE)


def module_prompts(modules: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """PROMPTS_PER_MODULE texts per module, evenly spread over it, each ending with the line of a definition."""
    texts = {name.removesuffix(".py"): text for name, text in held_out_sources()}
    for module in modules:
        ends = [match.end() for match in _DEFINITION.finditer(texts[module]) if match.end() >= _CHARACTERS]
        for number in range(PROMPTS_PER_MODULE):
            end = ends[number * (len(ends) - 1) // (PROMPTS_PER_MODULE - 1)]
            text = texts[module][end - _CHARACTERS : end]
            yield {"id": f"{module}-{number}", "prompt": text[text.index("\n") + 1 :]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "prompts")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name, modules in (("trace", TRACED_MODULES), ("validate", VALIDATED_MODULES)):
        lines = [json.dumps(prompt) for prompt in module_prompts(modules)]
        (args.out / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
