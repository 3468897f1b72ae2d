"""`--save-inflated`: writes a model of a larger shape with exactly the small one's output."""

from pathlib import Path

from swiftspec.artifacts.pair import model_name
from swiftspec.cli import console
from swiftspec.cli.outputs import check_outputs
from swiftspec.models.inflation import Inflation
from swiftspec.models.spec import ModelSpec, model_directory

__all__ = ["save_expanded"]

_SHAPE = ("num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "num_parameters")


def save_expanded(target: str, inflate: str | None, out: Path | None) -> None:
    """Write the expanded target as a Hugging Face directory in fp32, and print both shapes, if `out` is given.

    Raises
    ------
    ValueError
        Naming the flag.
    """
    if out is None:
        return
    if inflate is None:
        raise ValueError(f"--save-inflated is {out}; it needs --inflate, the shape to write")
    check_outputs(inputs={"--target": target})
    source = model_directory(model_name(target))
    spec = ModelSpec.from_directory(source)
    inflation = Inflation.parse(inflate)
    larger = inflation.inflated(spec)
    import torch

    from swiftspec.engine.model.weights.inflate import write_inflated

    with console.progress("inflate") as progress:
        progress(0, 1, f"writing {out}")
        write_inflated(source, inflation, out, dtype=torch.float32, seed=0)
        progress(1, 1, "done")
    before, after = _shape(spec), _shape(larger)
    rows = [(name, f"{before[name]:,}" if name in before else "-", f"{value:,}") for name, value in after.items()]
    console.table(f"{target} inflated to {inflate}", ("shape", "before", "after"), rows)
    console.say(f"\nSaved as {out}, in float32")


def _shape(spec: ModelSpec) -> dict[str, int]:
    shape = {name: getattr(spec, name) for name in _SHAPE}
    if spec.experts is not None:
        shape |= {"num_experts": spec.experts.num_experts, "num_active": spec.experts.num_active}
    return shape
