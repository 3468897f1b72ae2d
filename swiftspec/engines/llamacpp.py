"""llama.cpp's server."""

from typing import Final

from swiftspec.engines.description import Engine, StepLimits
from swiftspec.engines.words import CommandWords, Method, MethodWords, Value
from swiftspec.scheduler.step_rules import StepRule


def _drafter(name: str) -> MethodWords:
    # Without a least probability it ends a draft early, where policies draft as many tokens every time.
    return MethodWords(
        words={
            "--spec-type": name,
            "--spec-draft-model": Value.DRAFT,
            "--spec-draft-n-max": Value.DRAFT_TOKENS,
            "--spec-draft-p-min": 0,
        }
    )


_GGUF = (
    "llama.cpp reads GGUF files, which have their own weight formats: convert the checkpoints with "
    "convert_hf_to_gguf.py, and put the file beside config.json or name it in the directory's place."
)

LLAMACPP: Final = Engine(
    name="llamacpp",
    full_name="llama.cpp",
    release=(),
    rule=StepRule.DECODES_FIRST,
    kernels="llama.cpp, of which no kernel is known: vLLM's, with a host time as other engines have",
    op_tables=None,
    # tools/server: -ub 512 tokens of all slots together; four slots unless --parallel says otherwise.
    large_limits=StepLimits(step_tokens=512, requests=4, prefix_block=1),
    cpu_limits=StepLimits(step_tokens=512, requests=4, prefix_block=1, runs_ahead=False),
    words={"ubatch_size": "step_tokens", "parallel": "requests"},
    whole_experts=False,
    divides_heads=False,  # the rows of its matrices, by any number
    # docs/speculative.md; drafts by methods that are not listed were not tried.
    methods={
        Method.MODEL: _drafter("draft-simple"),
        Method.EAGLE3: _drafter("draft-eagle3"),
        Method.MTP: _drafter("draft-mtp"),
        Method.DFLASH: _drafter("draft-dflash"),
    },
    command=CommandWords(
        release="of November 2026",
        program=("llama-server",),
        options={
            "--model": Value.TARGET,
            "--split-mode": "row",
            "--tensor-split": Value.EQUAL_PARTS,
            "--parallel": Value.MAX_RUNNING,
        },
        cpu_options=("--metrics", "--no-webui"),
        reads=".gguf",
        quantises=False,
        remark=_GGUF,
    ),
    source="llama.cpp, tools/server/README.md of November 2026",
)
