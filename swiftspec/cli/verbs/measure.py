"""Verbs that measure this machine and its models."""

from pathlib import Path
from typing import Annotated

import typer

from swiftspec.cli import flags

__all__ = ["inflate", "profile", "trace"]


def profile(
    *,
    target: flags.Target,
    draft: flags.Draft,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the profile.")],
    inflate: flags.Inflate = None,
    save_inflated: flags.SaveInflated = None,
    device: Annotated[str, typer.Option(metavar="cpu|cuda", help="What to measure on.")] = "cpu",
    devices: Annotated[int | None, typer.Option(min=1, help="Number of GPUs, or of CPU cores. Default: all.")] = None,
    dtype: flags.Dtype = "auto",
    ranks: Annotated[
        int, typer.Option(min=1, metavar="N", help="On a CPU, also measure models divided by N processes.")
    ] = 1,
    max_sequences: Annotated[
        int, typer.Option(min=1, metavar="N", help="Also measure steps that up to N requests share.")
    ] = 1,
    ops: Annotated[Path | None, typer.Option(metavar="FILE", help="Also time single operations (.npz).")] = None,
    accept_noise: Annotated[
        bool, typer.Option("--accept-noise", help="Save a GPU's profile even if its times are noisy.")
    ] = False,
    plot: flags.Plot = None,
    json: flags.Json = None,
) -> None:
    """Measure what forwards and messages cost on this machine.

    \b
    Example:
      swiftspec profile --target demo/target --draft demo/draft --inflate layers=12,hidden=512 --out profile.json
    """
    from swiftspec.cli.inflate import save_expanded
    from swiftspec.cli.profile import profile as measure

    save_expanded(target, inflate, save_inflated)
    measure(
        target=target,
        draft=draft,
        inflate=inflate,
        dtype=dtype,
        device=device,
        devices=devices,
        out=out,
        ranks=ranks,
        max_sequences=max_sequences,
        ops=ops,
        accept_noise=accept_noise,
        plot=plot,
        json_path=json,
    )


def trace(
    *,
    target: flags.Target,
    draft: flags.Draft,
    prompts: flags.Prompts,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the trace (.npz).")],
    inflate: flags.Inflate = None,
    save_inflated: flags.SaveInflated = None,
    dtype: flags.Dtype = "auto",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Output tokens per prompt, at most.")] = 128,
    num_prompts: flags.NumPrompts = None,
    plot: flags.Plot = None,
    json: flags.Json = None,
) -> None:
    """Record how the draft ranks the target's own output.

    An inflated target has the same output as the small one, so one trace serves for both.

    \b
    Example:
      swiftspec trace --target demo/target --draft demo/draft --prompts prompts.jsonl --out trace.npz
    """
    from swiftspec.cli.inflate import save_expanded
    from swiftspec.cli.trace import trace as record

    save_expanded(target, inflate, save_inflated)
    record(
        target=target,
        draft=draft,
        prompts=prompts,
        inflate=inflate,
        dtype=dtype,
        max_new_tokens=max_new_tokens,
        out=out,
        limit=num_prompts,
        plot=plot,
        json_path=json,
    )


def inflate(
    *,
    target: flags.Target,
    inflate: Annotated[str, typer.Option(metavar="SHAPE", help="Target shape, e.g. layers=24,hidden=1024.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write the Hugging Face directory.")],
    dtype: Annotated[str, typer.Option(help="float32 (fp32) or bfloat16 (bf16).")] = "float32",
    seed: flags.Seed = 0,
    json: flags.Json = None,
) -> None:
    """Write a larger model with exactly the small one's output, as profile and trace do with --save-inflated."""
    from swiftspec.cli import console
    from swiftspec.cli.inflate import save_expanded
    from swiftspec.cli.outputs import check_outputs, write_json

    console.note("swiftspec: `swiftspec inflate` is now --save-inflated of `swiftspec profile` and `trace`")
    check_outputs(inputs={"--target": target}, json=json)
    write_json(json, save_expanded(target, inflate, out, dtype=dtype, seed=seed))
