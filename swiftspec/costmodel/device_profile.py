"""Profile of a pair on devices by name: the one composer, for plans and for backtests.

A backtest therefore tests the very profiles that plans are made from.
"""

from collections.abc import Callable
from pathlib import Path

from swiftspec.artifacts.profile import Profile
from swiftspec.costmodel.compose import Named, compose_profile
from swiftspec.costmodel.forward import Host
from swiftspec.costmodel.kernel_latency import Kernels
from swiftspec.costmodel.published import PublishedForwards, SwiftSpecKernels, published_tables
from swiftspec.costmodel.routing import ASSUMED_ROUTING, Routing
from swiftspec.costmodel.shipped import kernels_of, source_of, tables_of
from swiftspec.devices import DeviceSpec, named_device
from swiftspec.models.sparse_spec import SparseSpec

__all__ = ["Int4Forwards", "device_profile", "engine_kernels"]

Int4Forwards = Callable[[DeviceSpec], PublishedForwards]


def device_profile(
    *,
    device: str,
    num_devices: int,
    target: Named,
    draft: Named,
    quant: str,
    draft_quant: str | None = None,
    library: str | None = None,
    max_context: int,
    op_tables: Path | None = None,
    collective: str | None = None,
    int4_forwards: Int4Forwards | None = SwiftSpecKernels,
    draft_kv_budget: int | None = None,
    feature_bytes: int = 0,
    routing: Routing = ASSUMED_ROUTING,
    host: Host | None = None,
    draft_host: Host | None = None,
) -> Profile:
    """Every forward of both roles at every TP degree, and the sources of their times.

    Parameters
    ----------
    device : str
        Name in the registry.
    num_devices : int
    target, draft : Named
    quant, draft_quant : str
        Weight formats; the draft's defaults to the target's.
    library : str, optional
        Library of the op tables; the usual one if not given.
    max_context : int
        The longest prefix, in tokens.
    op_tables : Path, optional
        The user's, instead of the packaged ones.
    collective : str, optional
        The all-reduce; the fastest known one if not given.
    int4_forwards : callable, optional
        From a device to published whole forwards with int4 weights; composed as in any other format if None.
    draft_kv_budget, feature_bytes : int, optional
        As for `compose_profile`.
    routing : Routing, optional
        As for `compose_profile`.
    host, draft_host : Host, optional
        As for `compose_profile`.

    Raises
    ------
    ValueError
        If the op tables are of another device, or have no rows of the library.
    """
    spec = named_device(device)
    published = int4_forwards(spec) if int4_forwards else None
    profile = compose_profile(
        device=spec,
        num_devices=num_devices,
        target=target,
        draft=draft,
        quant=quant,
        draft_quant=draft_quant,
        kernels=engine_kernels(device, library=library, op_tables=op_tables),
        max_context=max_context,
        host=host,
        draft_host=draft_host,
        published=published,
        collective=collective,
        draft_kv_budget=draft_kv_budget,
        feature_bytes=feature_bytes,
        routing=routing,
    )
    sources = [source_of(device, op_tables)]
    if published is not None and "int4" in (quant, draft_quant):
        sources.append(f"forwards in int4 by published figures: {published_tables()['source']}")
    if any(isinstance(model.spec, SparseSpec) and model.spec.experts for model in (target, draft)):
        sources.append(str(routing))
    if draft_kv_budget is not None:
        sources.append(f"a draft whose cache keeps {draft_kv_budget} tokens, which is assumed")
    return profile.model_copy(update={"sources": tuple(sources)})


def engine_kernels(device: str, *, library: str | None = None, op_tables: Path | None = None) -> Kernels:
    """Kernel latencies from op tables, else by roofline. ValueError for tables of another device or library."""
    tables = tables_of(device, op_tables) if library else None
    if tables is not None and library not in (known := tables.values("gemm", "framework")):
        raise ValueError(f"engine is {library}; the op tables of {device} hold {', '.join(known)}")
    return kernels_of(device, framework=library, path=op_tables)
