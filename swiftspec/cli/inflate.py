"""`--save-inflated`: writes a model of a larger shape with exactly the small one's output."""

from pathlib import Path

from swiftspec.artifacts.pair import DTYPES, model_name
from swiftspec.cli import console
from swiftspec.cli.outputs import check_outputs, write_json
from swiftspec.cli.verbs.data import InflateFlags
from swiftspec.models.inflation import Inflation
from swiftspec.models.spec import ModelSpec, model_directory

_SHAPE = ("num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "num_parameters")


def inflate(asked: InflateFlags) -> None:
    """Write the expanded target alone, as an old verb did."""
    console.note("swiftspec: `swiftspec inflate` is now --save-inflated of `swiftspec profile` and `trace`")
    check_outputs(inputs={"--target": asked.target}, json=asked.json)
    content = save_expanded(asked.target, asked.inflate, asked.out, dtype=asked.dtype, seed=asked.seed)
    write_json(asked.json, content)


def save_expanded(
    target: str, inflate: str | None, out: Path | None, *, dtype: str = "float32", seed: int = 0
) -> dict[str, object]:
    """Write the expanded target to a directory, if one is given, and print both shapes. ValueError naming the flag."""
    if out is None:
        return {}
    if inflate is None:
        raise ValueError(f"--save-inflated is {out}; it needs --inflate, the shape to write")
    if dtype not in DTYPES:
        raise ValueError(f"--dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
    source = model_directory(model_name(target))
    spec = ModelSpec.from_directory(source)
    inflation = Inflation.parse(inflate)
    larger = inflation.inflated(spec)
    from swiftspec.engine.model.runner import DTYPES as TORCH_DTYPES
    from swiftspec.engine.model.weights.inflate import write_inflated

    with console.progress("inflate") as progress:
        progress(0, 1, f"writing {out}")
        write_inflated(source, inflation, out, dtype=TORCH_DTYPES[DTYPES[dtype]], seed=seed)
        progress(1, 1, "done")
    before, after = _shape(spec), _shape(larger)
    rows = [(name, f"{before[name]:,}" if name in before else "-", f"{value:,}") for name, value in after.items()]
    console.table(f"{target} inflated to {inflate}", ("shape", "before", "after"), rows)
    console.say(f"\nSaved as {out}, in {DTYPES[dtype]}")
    return {"out": str(out), "dtype": DTYPES[dtype], "before": before, "after": after}


def _shape(spec: ModelSpec) -> dict[str, int]:
    shape = {name: getattr(spec, name) for name in _SHAPE}
    if spec.experts is not None:
        shape |= {"num_experts": spec.experts.num_experts, "num_active": spec.experts.num_active}
    return shape
