"""Options of the verbs that measure this machine and its models."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from swiftspec.cli import flags
from swiftspec.cli.flags import flag, option


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFlags:
    """Measure what forwards and messages cost on this machine.

    With --engine: of that engine's servers, from outside. They are started here, asked, and ended.

    \b
    Examples:
      swiftspec profile --target demo/target --draft demo/draft --inflate layers=12,hidden=512 --out profile.json
      swiftspec profile --engine vllm --target llama-8b/ --draft llama-1b/ --device cuda --out vllm.json
      swiftspec profile --url http://127.0.0.1:8000 --target llama-8b/ --draft llama-1b/ --device cuda --out vllm.json
    """

    target: flags.Target
    draft: flags.Draft
    out: Annotated[Path, option("FILE", "Where to write the profile.")]
    inflate: flags.Inflate = None
    save_inflated: flags.SaveInflated = None
    device: str = flag("cpu|cuda", "What to measure on.", default="cpu")
    devices: int | None = flag("", "Number of GPUs, or of CPU cores. Default: all.", min=1)
    dtype: flags.Dtype = "auto"
    ranks: int = flag("N", "On a CPU, also measure models divided by N processes.", default=1, min=1)
    max_sequences: int = flag("N", "Also measure steps that up to N requests share.", default=1, min=1)
    engine: flags.Engine = None
    url: str | None = flag("URL", "Measure the server that runs there.")
    api_key_file: flags.ApiKeyFile = None
    python: flags.EnginePython = None
    server_args: flags.ServerArgs = None
    minutes: float | None = flag(
        "N", "Measure no longer, so less of slow models. Default: 10, of a server 15; on GPUs 5 and 6.", min=1
    )
    starts: int = flag(
        "", "With --engine: servers that are started: plain, with a draft, with ngram.", default=3, min=1, max=3
    )
    ops: Path | None = flag("FILE", "Also time single operations (.npz).")
    accept_noise: bool = flag("", "Save a GPU's profile even if its times are noisy.", "--accept-noise", default=False)
    plot: flags.Plot = None
    json: flags.Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFlags:
    """Record how the draft ranks the target's own output.

    An inflated target has the same output as the small one, so one trace serves for both. With slow models, no prompt
    begins after ten minutes, unless --num-prompts says how many to trace.

    \b
    Example:
      swiftspec trace --target demo/target --draft demo/draft --prompts prompts.jsonl --out trace.npz
    """

    target: flags.Target
    draft: flags.Draft
    prompts: flags.Prompts
    out: Annotated[Path, option("FILE", "Where to write the trace (.npz).")]
    inflate: flags.Inflate = None
    save_inflated: flags.SaveInflated = None
    dtype: flags.Dtype = "auto"
    max_new_tokens: int = flag("", "Output tokens per prompt, at most.", default=128, min=1)
    num_prompts: flags.NumPrompts = None
    temperature: flags.Temperature = 0.0
    top_p: float = flag("", flags.TOP_P, default=1.0)
    top_k: int = flag("", flags.TOP_K, default=0)
    seed: flags.Seed = 0
    plot: flags.Plot = None
    json: flags.Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InflateFlags:
    """Write a larger model with exactly the small one's output, as profile and trace do with --save-inflated."""

    target: flags.Target
    inflate: Annotated[str, option("SHAPE", "Target shape, e.g. layers=24,hidden=1024.")]
    out: Annotated[Path, option("DIR", "Where to write the Hugging Face directory.")]
    dtype: str = flag("", "float32 (fp32) or bfloat16 (bf16).", default="float32")
    seed: flags.Seed = 0
    json: flags.Json = None
