"""Options of `swiftspec study blockllm`."""

from typing import Annotated, Literal

import typer


def blockllm(
    *,
    directories: Annotated[
        list[str] | None, typer.Argument(metavar="[DIR DIR ..]", help="Directories of tenants, the base first.")
    ] = None,
    only: Annotated[
        Literal["surrogates", "waits", "kv", "crowding", "load"] | None, typer.Option(help="One table instead of all.")
    ] = None,
) -> None:
    """Serve chains of blocks that fine-tunes share, in simulated time.

    Where a surrogate breaks even, waits before one block, where a request goes with its KV, and latency of shared
    blocks against whole models on the same devices; held against closed forms. Costs are those of Llama-3-8B in bf16
    on A100; tenants share 24 of its 32 layers, or as many as those of the directories do. Minutes, no measurement.

    \b
    Examples:
      swiftspec study blockllm --only waits
      swiftspec study blockllm base fine-tune-a fine-tune-b --only load
    """
    from swiftspec.studies.blockllm.command import blockllm as simulate

    simulate(directories or (), only)
