"""Sections about the machine: what each device holds, and which all-reduce the groups use."""

from swiftspec.artifacts.plan import GroupMemory
from swiftspec.policies.effects import Role
from swiftspec.reports.formatting import gigabytes
from swiftspec.reports.html.charts import Segment, legend, stacked_bar
from swiftspec.reports.html.markup import Markup, element
from swiftspec.reports.html.parts import DASH, Column, View, section, table
from swiftspec.reports.html.sources import Source

__all__ = ["collectives", "memory"]

_PAINTS = {Role.TARGET: "verify", Role.DRAFT: "expand"}
_KV_SHADE = 0.55


def memory(view: View) -> Markup | None:
    """Bytes on each device of every group, against the usable memory."""
    groups = view.plan.memory
    if not groups:
        return None
    pieces = [_group(group) for group in groups]
    text = "Gigabytes (10⁹ bytes) on each device; the full width is the usable memory."
    return section(
        "memory",
        "Memory per device",
        element("p", text, class_="quiet"),
        *pieces,
        sources=(Source.DATASHEETS,),
    )


def _group(group: GroupMemory) -> Markup:
    held = [
        Segment(f"{role} weights", size, _PAINTS[role], f"{role} weights: {gigabytes(size)} GB")
        for role, size in group.weights_bytes.items()
    ]
    held += [
        Segment(f"{role} KV cache", size, _PAINTS[role], f"{role} KV cache: {gigabytes(size)} GB", _KV_SHADE)
        for role, size in group.kv_bytes.items()
    ]
    reserve = f"graphs and workspace: {gigabytes(group.reserve_bytes)} GB"
    held.append(Segment("graphs and workspace", group.reserve_bytes, "wait", reserve))
    named = [segment._replace(name=f"{segment.name} {gigabytes(segment.value)}") for segment in held]
    label = (
        f"{_devices(group.devices)}: {gigabytes(group.used_bytes)} of {gigabytes(group.usable_bytes)} GB usable "
        f"({group.used_bytes / group.usable_bytes * 100:.0f} %)"
    )
    bar = stacked_bar(held, label=label, total=max(group.usable_bytes, group.used_bytes))
    return element("div", element("h3", label), element("div", bar, class_="vessel"), legend(named), class_="process")


def _devices(devices: tuple[int, ...]) -> str:
    """`Device 7`, `Devices 0 to 3`."""
    if len(devices) == 1:
        return f"Device {devices[0]}"
    if devices == tuple(range(devices[0], devices[-1] + 1)):
        return f"Devices {devices[0]} to {devices[-1]}"
    return "Devices " + ", ".join(map(str, devices))


def collectives(view: View) -> Markup | None:
    """One all-reduce by each implementation that the profile knows."""
    used = view.plan.collectives
    if not used:
        return None
    names = sorted({name for collective in used for name in collective.seconds})
    columns = (
        Column(heading="role"),
        Column(heading="devices", numeric=True),
        Column(heading="uses"),
        *(Column(heading=f"{name}, µs", numeric=True) for name in names),
    )
    rows = [
        (
            collective.role.value,
            str(collective.degree),
            element("strong", collective.implementation),
            *(_microseconds(collective.seconds.get(name)) for name in names),
        )
        for collective in used
    ]
    return section(
        "collectives",
        "All-reduce",
        table("One all-reduce of a forward's activations", columns, rows),
        sources=(Source.LATENCIES,),
    )


def _microseconds(seconds: float | None) -> str:
    return DASH if seconds is None else f"{seconds * 1e6:.1f}"
