"""Profile of a pair on devices by name: the one composer, for plans and for backtests.

A backtest therefore tests the very profiles that plans are made from.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from swiftspec.artifacts.profile import Profile
from swiftspec.costmodel.compose import RoleModel, compose_profile
from swiftspec.costmodel.expert_shapes import ExpertShape
from swiftspec.costmodel.kernel_latency import Kernels
from swiftspec.costmodel.published import PublishedForwards, SwiftSpecKernels, published_tables
from swiftspec.costmodel.routing import ASSUMED_ROUTING, Routing
from swiftspec.costmodel.shipped import kernels_of, source_of, tables_of
from swiftspec.devices import DeviceSpec, named_device
from swiftspec.errors import FieldError
from swiftspec.models.sparse_spec import SparseSpec

__all__ = ["Int4Forwards", "device_profile", "engine_kernels"]

Int4Forwards = Callable[[DeviceSpec], PublishedForwards]


def device_profile(
    target: RoleModel,
    draft: RoleModel,
    *,
    device: str,
    num_devices: int,
    max_context: int,
    library: str | None = None,
    op_tables: Path | None = None,
    collective: str | None = None,
    int4_forwards: Int4Forwards | None = SwiftSpecKernels,
    routing: Routing = ASSUMED_ROUTING,
) -> Profile:
    """Every forward of both roles at every TP degree, and the sources of their times.

    device: name in the registry.
    max_context, collective, routing: as for `compose_profile`.
    library: library of the op tables; the usual one if not given.
    op_tables: the user's, instead of the packaged ones.
    int4_forwards: from a device to published whole forwards with int4 weights; composed as in any other format if None.

    ValueError: if the op tables are of another device, or have no rows of the library.
    """
    published = int4_forwards(named_device(device)) if int4_forwards else None
    profile = compose_profile(
        target,
        draft,
        kernels=engine_kernels(device, library=library, op_tables=op_tables),
        num_devices=num_devices,
        max_context=max_context,
        published=published,
        collective=collective,
        routing=routing,
    )
    sources = [source_of(device, op_tables), *_unmeasured_experts(device, op_tables, (target, draft))]
    if published is not None and "int4" in (target.quant, draft.quant):
        sources.append(f"forwards in int4 by published figures: {published_tables()['source']}")
    specs = (target.model.spec, draft.model.spec)
    if any(isinstance(spec, SparseSpec) and spec.experts for spec in specs):
        sources.append(str(routing))
    if draft.kv_budget is not None:
        sources.append(f"a draft whose cache keeps {draft.kv_budget} tokens, which is assumed")
    return profile.model_copy(update={"sources": tuple(sources)})


def _unmeasured_experts(device: str, op_tables: Path | None, models: Sequence[RoleModel]) -> Iterator[str]:
    """A clause for each model whose experts are in no table, and lie between others."""
    tables = tables_of(device, op_tables)
    for model in models:
        spec = model.model.spec
        if tables is not None and spec.experts is not None:
            shape = ExpertShape.of(spec.experts, spec.hidden_size, model.quant)
            if not shape.is_measured(tables):
                yield f"experts of {model.model.name}, which are in no table, between the nearest measured ones"


def engine_kernels(device: str, *, library: str | None = None, op_tables: Path | None = None) -> Kernels:
    """Kernel latencies from op tables, else by roofline. ValueError for tables of another device or library."""
    tables = tables_of(device, op_tables) if library else None
    if tables is not None and library not in (known := tables.values("gemm", "framework")):
        raise FieldError("engine", library, f"the op tables of {device} hold {', '.join(known)}")
    return kernels_of(device, framework=library, path=op_tables)
