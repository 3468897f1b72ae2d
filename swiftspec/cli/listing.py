"""`swiftspec list`: the names that a plan may use."""

from typing import Any

from swiftspec.acceptance.records import published_acceptance
from swiftspec.cli import console
from swiftspec.cli.outputs import check_files, write_json
from swiftspec.cli.verbs.data import ListFlags
from swiftspec.devices import DEVICES
from swiftspec.engines import ENGINES
from swiftspec.models.families import PLANNED_ONLY
from swiftspec.models.names import ARCHITECTURES
from swiftspec.models.published import known_model, model_names
from swiftspec.policies import POLICIES, Policy
from swiftspec.policies.base import shape_of
from swiftspec.policies.registry import offers
from swiftspec.reports.formatting import gigabytes

# Fields that are listed as they are.
_OF_MODELS = ("num_parameters", "num_layers", "hidden_size", "vocab_size", "max_position")
_OF_DEVICES = ("memory_bytes", "memory_bandwidth_Bps", "link_bandwidth_Bps")


def list_names(asked: ListFlags) -> None:
    check_files(asked)
    lists = {"models": list_models, "devices": list_devices, "policies": list_policies, "engines": list_engines}
    write_json(asked.json, lists[asked.what]())


def list_models() -> dict[str, Any]:
    """Print shape, vocabulary and published acceptance of every model; a draft needs its target's vocabulary."""
    listed = [_model(name) for name in model_names()]
    rows = [
        (
            model["name"],
            model["vocabulary"],
            f"{model['num_parameters'] / 1e9:.3g}",
            str(model["num_layers"]),
            str(model["max_position"]),
            ", ".join(sorted(model["acceptance"])) or "-",
        )
        for model in listed
    ]
    columns = ("model", "vocabulary", "billions", "layers", "context", "acceptance published with")
    console.table("Models known by name", columns, rows, num_text_columns=2, last_is_text=True)
    console.paragraph()
    console.paragraph(
        "For another model, give a directory with its config.json, whose model_type tells whether it is known: "
        f"{', '.join(ARCHITECTURES)} run and can be planned; {', '.join(PLANNED_ONLY)} can be planned only. "
        "A draft needs the vocabulary of its target. A pair without published acceptance is planned with that of the "
        "most similar pair, or with `swiftspec plan --acceptance`."
    )
    return {"models": listed}


def _model(name: str) -> dict[str, Any]:
    known = known_model(name)
    drafts: dict[str, list[str]] = {}
    for record in published_acceptance():
        if record.target == name and record.draft in model_names():
            drafts.setdefault(record.draft, []).append(record.dataset)
    return {
        "name": name,
        "repository": known.source,
        "vocabulary": known.vocabulary,
        **{field: getattr(known.spec, field) for field in _OF_MODELS},
        "acceptance": {draft: sorted(set(datasets)) for draft, datasets in drafts.items()},
    }


def list_devices() -> dict[str, Any]:
    """Print memory and bandwidths of every device, and the engines whose operations were measured on it."""
    from swiftspec.costmodel.shipped import tables_of

    listed: list[dict[str, Any]] = [
        {
            "name": name,
            **{field: getattr(device, field) for field in _OF_DEVICES},
            "peak_flops": dict(device.peak_flops),
            "devices_per_node": device.devices_per_node,
            "engines": tables.values("gemm", "framework") if (tables := tables_of(name)) else [],
            "op_tables": device.op_tables,
            "source": device.source,
        }
        for name, device in DEVICES.items()
    ]
    rows = [
        (
            device["name"],
            gigabytes(device["memory_bytes"]),
            f"{device['memory_bandwidth_Bps'] / 1e12:.2f}",
            f"{device['link_bandwidth_Bps'] / 1e9:.0f}",
            str(device["devices_per_node"]),
            (", ".join(device["engines"]) or "none: rooflines")
            + (f" (on {device['op_tables']})" if device["op_tables"] else ""),
        )
        for device in listed
    ]
    columns = ("device", "GB", "TB/s", "GB/s to peers", "per node", "measured engines")
    console.table("Devices known by name", columns, rows, last_is_text=True)
    return {"devices": listed}


def list_policies() -> dict[str, Any]:
    """Print layout, package and shape of every policy, simplest first; then policies that cannot be used, and why."""
    found = offers()
    known: list[tuple[type[Policy], str | None]] = [(policy, None) for policy in POLICIES.values()]
    known += [(offer.policy, offer.package) for offer in found if offer.policy is not None]
    listed: list[dict[str, Any]] = [
        {"name": policy.name, "layout": policy.layout, "package": package, "shape": shape_of(policy())}
        for policy, package in known
    ]
    rows = [
        (policy["name"], policy["layout"], policy["package"] or "built in", ", ".join(policy["shape"]) or "-")
        for policy in listed
    ]
    columns = ("policy", "layout", "package", "shape")
    console.table("Policies, simplest first", columns, rows, num_text_columns=3, last_is_text=True)
    faults = [offer.fault for offer in found if offer.policy is None]
    for fault in faults:
        console.paragraph()
        console.paragraph(f"Cannot be used: {fault}")
    return {"policies": listed, "faults": faults}


def list_engines() -> dict[str, Any]:
    """Print release, limits of a step and drafting methods of every engine that `--engine` takes."""
    listed: list[dict[str, Any]] = [
        {
            "name": engine.name,
            "full_name": engine.full_name,
            "release": ".".join(map(str, engine.release)),
            "step_tokens": engine.large_limits.step_tokens,
            "requests": engine.large_limits.requests,
            "methods": [method.value for method in engine.methods],
            "source": engine.source,
        }
        for engine in ENGINES.values()
    ]
    rows = [
        (
            engine["name"],
            engine["release"] or "-",
            str(engine["step_tokens"]),
            str(engine["requests"]),
            ", ".join(engine["methods"]) or "all policies",
        )
        for engine in listed
    ]
    columns = ("engine", "release", "tokens per step", "requests", "drafting methods")
    console.table("Engines known by name", columns, rows, num_text_columns=2, last_is_text=True)
    console.paragraph()
    console.paragraph(
        "Limits are the defaults on large devices; `--set` changes them. `--engine NAME@RELEASE` means another release."
    )
    return {"engines": listed}
