"""Options of `swiftspec study tenants`."""

from typing import Annotated, Literal

import typer

from swiftspec.cli import flags


def tenants(
    *,
    directories: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR DIR ..", help="Hugging Face directories, the base first, and LoRA adapters of the base."
        ),
    ],
    memory_gib: Annotated[
        float | None, typer.Option(min=0.001, metavar="G", help="Say how many such tenants fit in G GiB.")
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tokens of a request. Default: the model's, at most 4096.")
    ] = None,
    max_running: Annotated[int, typer.Option(min=1, metavar="N", help="Requests of each tenant at once.")] = 8,
    kv_dtype: Annotated[
        Literal["bf16", "fp16", "fp32"], typer.Option(help="Of keys and values: what the engine computes in.")
    ] = "bf16",
    near: Annotated[
        float | None,
        typer.Option(
            min=0.0, max=1.0, metavar="COSINE", help="What if layers as near to the base's were taken for equal: lossy."
        ),
    ] = None,
    json: flags.Json = None,
) -> None:
    """Layers that fine-tunes of a model share, and their memory.

    Weights are equal if all their bytes are; equal ones are needed once.

    \b
    Example:
      swiftspec study tenants base fine-tune-a fine-tune-b adapter --memory-gib 80 --context 2048
    """
    from swiftspec.studies.tenants.command import Asked
    from swiftspec.studies.tenants.command import tenants as compare_weights

    compare_weights(
        directories=directories,
        asked=Asked(context, max_running, kv_dtype, memory_gib, near),
        json_path=json,
    )
