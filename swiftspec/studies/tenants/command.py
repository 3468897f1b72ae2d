"""`swiftspec study tenants`: layers that models share, and the memory that they take alone and together."""

from pathlib import Path
from typing import Any, NamedTuple

from swiftspec.cli import console
from swiftspec.cli.outputs import check_outputs, write_json
from swiftspec.reports.formatting import count, percent
from swiftspec.studies.tenants.directories import read_zoo
from swiftspec.studies.tenants.zoo import Memory, Nearness, Tenant, Zoo

_LONGEST_CONTEXT = 4096  # unless a longer one is given: as of `swiftspec serve`


class Asked(NamedTuple):
    """Flags: tokens of a request, requests of a tenant at once, KV dtype, memory, and the cosine of a what-if."""

    context: int | None = None
    max_running: int = 8
    kv_dtype: str = "bf16"
    memory_gib: float | None = None
    near: float | None = None


def size(num_bytes: float) -> str:
    """Decimal gigabytes, or megabytes below one, with their unit."""
    if num_bytes >= 1e9:
        return f"{num_bytes / 1e9:.1f} GB"
    return f"{num_bytes / 1e6:.2f} MB" if num_bytes else "0"


def tenants(*, directories: list[str], asked: Asked, json_path: Path | None = None) -> Zoo:
    """Read, print and save."""
    check_outputs(inputs={f"DIR {name}": name for name in directories}, json=json_path)
    with console.progress("tenants") as progress:
        stored = read_zoo(directories, progress=progress)
        nearnesses = stored.nearnesses() if asked.near is not None else ()
    zoo = stored.zoo
    context = asked.context or min(zoo.spec.max_position, _LONGEST_CONTEXT)
    request_bytes = zoo.kv_bytes(context=context, dtype=asked.kv_dtype)
    kv_bytes = request_bytes * asked.max_running
    fitting = None if asked.memory_gib is None else zoo.fitting(asked.memory_gib * 2**30, kv_bytes=kv_bytes)
    _show(zoo)
    console.paragraph(
        f"{count(len(zoo.tenants), 'tenant')}: {size(zoo.alone_bytes)} alone, {size(zoo.shared_bytes)} shared "
        f"({percent(zoo.shared_bytes / zoo.alone_bytes)})."
    )
    console.paragraph(f"KV of a request of {count(context, 'token')}: {size(request_bytes)} in {asked.kv_dtype}.")
    if fitting is not None and asked.memory_gib is not None:
        console.paragraph(
            f"In {asked.memory_gib:g} GiB fit {fitting.alone} such tenants alone and {fitting.shared} shared, each "
            f"with {count(asked.max_running, 'request')} of {count(context, 'token')} at once: a base, and then "
            f"{size(zoo.mean_added_bytes)} of weights and {size(kv_bytes)} of KV for each."
        )
    if asked.near is not None:
        _show_near(zoo, nearnesses, asked.near)
    content = _content(zoo, nearnesses, fitting) | {"context": context, "kv_bytes_per_request": request_bytes}
    write_json(json_path, content)
    return zoo


def _show(zoo: Zoo) -> None:
    rows = [
        (
            tenant.name,
            size(tenant.alone_bytes),
            size(zoo.private_bytes(tenant)),
            _adapter(tenant),
            _sharing(zoo, tenant),
        )
        for tenant in zoo.tenants
    ]
    columns = ("tenant", "alone", "its own", "adapter", "layers")
    console.table(f"Tenants of {zoo.base.name}", columns, rows, last_is_text=True)
    console.paragraph()


def _adapter(tenant: Tenant) -> str:
    adapter = tenant.adapter
    if adapter is None:
        return "-"
    return f"{size(adapter.num_bytes)}, rank {adapter.rank}"


def _sharing(zoo: Zoo, tenant: Tenant) -> str:
    """`embedding, 0-5 with all; 6 with a, b; 7, head its own`."""
    parts: dict[tuple[str, ...], list[str]] = {}
    for run in zoo.runs(tenant):
        parts.setdefault(run.tenants, []).append(str(run))
    return "; ".join(f"{', '.join(texts)} {_sharers(zoo, tenant, names)}" for names, texts in parts.items())


def _sharers(zoo: Zoo, tenant: Tenant, names: tuple[str, ...]) -> str:
    if len(names) == 1:
        return "its own"
    others = [name for name in names if name != tenant.name]
    return "with all" if len(names) == len(zoo.tenants) else f"with {', '.join(others)}"


def _show_near(zoo: Zoo, nearnesses: tuple[Nearness, ...], cosine: float) -> None:
    rows = [(each.tenant, each.part, size(each.num_bytes), f"{each.cosine:.5f}") for each in nearnesses]
    console.table(
        "What if near layers were taken for equal", ("tenant", "part", "its own", "cosine"), rows, num_text_columns=2
    )
    console.paragraph()
    shared = zoo.shared_if_near(nearnesses, cosine=cosine)
    console.paragraph(
        f"Parts with a cosine of {cosine:g} or more with the base's taken for equal: {size(shared)} instead of "
        f"{size(zoo.shared_bytes)}. That is lossy: these tenants' outputs would change, and a cosine does not say how."
    )


def _content(zoo: Zoo, nearnesses: tuple[Nearness, ...], fitting: Memory | None) -> dict[str, Any]:
    return {
        "tenants": [_tenant(zoo, tenant) for tenant in zoo.tenants],
        "alone_bytes": zoo.alone_bytes,
        "shared_bytes": zoo.shared_bytes,
        "fitting": None if fitting is None else {"alone": fitting.alone, "shared": fitting.shared},
        "near": [
            {"tenant": each.tenant, "part": each.part, "bytes": each.num_bytes, "cosine": each.cosine}
            for each in nearnesses
        ],
    }


def _tenant(zoo: Zoo, tenant: Tenant) -> dict[str, Any]:
    adapter = tenant.adapter
    return {
        "name": tenant.name,
        "alone_bytes": tenant.alone_bytes,
        "private_bytes": zoo.private_bytes(tenant),
        "adapter": None
        if adapter is None
        else {"bytes": adapter.num_bytes, "matrices": adapter.num_matrices, "rank": adapter.rank},
        "blocks": [{"parts": list(run.parts), "tenants": list(run.tenants)} for run in zoo.runs(tenant)],
    }
