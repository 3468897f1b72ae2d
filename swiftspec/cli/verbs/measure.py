"""Options of the verbs that measure this machine and its models."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from swiftspec.cli import flags

__all__ = ["InflateFlags", "ProfileFlags", "TraceFlags"]


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
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the profile.")]
    inflate: flags.Inflate = None
    save_inflated: flags.SaveInflated = None
    device: Annotated[str, typer.Option(metavar="cpu|cuda", help="What to measure on.")] = "cpu"
    devices: Annotated[int | None, typer.Option(min=1, help="Number of GPUs, or of CPU cores. Default: all.")] = None
    dtype: flags.Dtype = "auto"
    ranks: Annotated[
        int, typer.Option(min=1, metavar="N", help="On a CPU, also measure models divided by N processes.")
    ] = 1
    max_sequences: Annotated[
        int, typer.Option(min=1, metavar="N", help="Also measure steps that up to N requests share.")
    ] = 1
    engine: flags.Engine = None
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Measure the server that runs there."),
    ] = None
    api_key_file: flags.ApiKeyFile = None
    python: flags.EnginePython = None
    server_args: flags.ServerArgs = None
    minutes: Annotated[
        float | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Measure no longer, so less of slow models. Default: 10, of a server 15; on GPUs 5 and 6.",
        ),
    ] = None
    starts: Annotated[
        int,
        typer.Option(min=1, max=3, help="With --engine: servers that are started: plain, with a draft, with ngram."),
    ] = 3
    ops: Annotated[Path | None, typer.Option(metavar="FILE", help="Also time single operations (.npz).")] = None
    accept_noise: Annotated[
        bool, typer.Option("--accept-noise", help="Save a GPU's profile even if its times are noisy.")
    ] = False
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
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the trace (.npz).")]
    inflate: flags.Inflate = None
    save_inflated: flags.SaveInflated = None
    dtype: flags.Dtype = "auto"
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Output tokens per prompt, at most.")] = 128
    num_prompts: flags.NumPrompts = None
    temperature: flags.Temperature = 0.0
    top_p: Annotated[float, flags.TOP_P] = 1.0
    top_k: Annotated[int, flags.TOP_K] = 0
    seed: flags.Seed = 0
    plot: flags.Plot = None
    json: flags.Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InflateFlags:
    """Write a larger model with exactly the small one's output, as profile and trace do with --save-inflated."""

    target: flags.Target
    inflate: Annotated[str, typer.Option(metavar="SHAPE", help="Target shape, e.g. layers=24,hidden=1024.")]
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write the Hugging Face directory.")]
    dtype: Annotated[str, typer.Option(help="float32 (fp32) or bfloat16 (bf16).")] = "float32"
    seed: flags.Seed = 0
    json: flags.Json = None
