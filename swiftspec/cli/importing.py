"""`swiftspec import`: op tables and acceptance by position, from what other tools measured."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swiftspec.acceptance.importing import MeasuredAcceptance, from_server, from_trace
from swiftspec.acceptance.records import AcceptanceRecord, AcceptanceRecords
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.cli import console
from swiftspec.cli.outputs import check_files, saved, write_json
from swiftspec.cli.settings import CONDITIONS, own_settings
from swiftspec.cli.verbs.data import ImportFlags
from swiftspec.costmodel.importing import from_directory
from swiftspec.costmodel.op_tables import COLUMNS, OpTables
from swiftspec.devices import registered_device
from swiftspec.files.document import Origin
from swiftspec.files.reading import open_input
from swiftspec.models.draft_kinds import KIND_OF_DRAFTER
from swiftspec.models.heads import Drafter

PACKAGE = "aiconfigurator"
_ZIP = b"PK"  # a trace begins so
_TRACED_TOKENS = 8  # of a chain on a trace


def import_files(asked: ImportFlags) -> None:
    settings = own_settings(asked.settings, CONDITIONS)
    shape = {name: settings.pop(name, None) for name in ("num_draft_tokens", "top_k", "rows")}
    context = settings.pop("prompt_tokens", None)
    said = {"target": asked.target, "drafter": asked.drafter, "context": context, **settings}
    conditions = {name: value for name, value in said.items() if value not in (None, "")}
    if asked.source == PACKAGE or Path(asked.source).is_dir():
        if conditions or any(shape.values()):
            raise ValueError(f"--from is {asked.source}, op tables; --target, --drafter and --set are of acceptance")
        _import_tables(asked)
        return
    if asked.device is not None:
        raise ValueError(f"--device is {asked.device}; it is of op tables, and {asked.source} holds acceptance")
    check_files(asked, inputs={"--from": asked.source})
    record = _acceptance(Path(asked.source), shape, conditions)
    AcceptanceRecords(origin=Origin.here(), records=(record,)).save(asked.out)
    show_record(record)
    console.say(f"\n{saved(asked.out)}")
    derived = {"rates": record.rates, "conditional": record.conditional, "basis": record.basis}
    write_json(asked.json, {"acceptance": str(asked.out), "record": record.model_dump(mode="json"), **derived})


def _acceptance(source: Path, shape: Mapping[str, int | None], conditions: Mapping[str, Any]) -> AcceptanceRecord:
    """Of a trace, whose output is greedy, or of what a server counted. conditions: what flags say of the text."""
    if _is_trace(source):
        trace = AcceptanceTrace.load(source)
        counted = from_trace(trace, num_draft_tokens=shape["num_draft_tokens"] or _TRACED_TOKENS)
        known = {"target": trace.target.model, "drafter": trace.draft.model, "kind": trace.draft_kind}
        conditions = {**known, "temperature": 0.0, **conditions}
    else:
        counted = from_server(source, target=conditions.get("target", ""), **shape)
    for name in ("top_k", "rows"):
        if shape[name] is not None and shape[name] != getattr(counted, name):
            raise ValueError(f"--set {name} is {shape[name]}; it is of trees, and {source} has chains")
    return _record(counted, conditions)


def _is_trace(path: Path) -> bool:
    """Whether a file is an archive. A pipe is none: what is read of it is gone."""
    if not path.is_file():
        return False
    with os.fdopen(open_input(path), "rb") as file:
        return file.read(len(_ZIP)) == _ZIP


def _import_tables(asked: ImportFlags) -> None:
    if asked.device is None:
        raise ValueError(f"--device is missing; --from {asked.source} needs the device whose rows to take")
    check_files(asked, inputs={"--from": asked.source})
    device = registered_device(asked.device, field="--device")
    if asked.source == PACKAGE:
        from swiftspec.costmodel.aiconfigurator import from_package

        tables = from_package(device=device)
    else:
        tables = from_directory(Path(asked.source), device=device)
    tables.save(asked.out)
    show_tables(tables)
    console.say(f"\n{saved(asked.out)}")
    content = {
        "tables": str(asked.out),
        "device": tables.device,
        "licence": tables.licence,
        "attribution": tables.attribution,
        "left_out": list(tables.left_out),
        "measurements": {name: len(tables.tables[name]["latency_s"]) for name in COLUMNS},
        "sources": [source.model_dump() for source in tables.sources],
    }
    write_json(asked.json, content)


def show_tables(tables: OpTables) -> None:
    rows = [
        (
            name,
            f"{len(tables.tables[name]['latency_s']):,}",
            ", ".join(f"{source.library} {source.version}" for source in tables.sources if source.tables == name),
        )
        for name in COLUMNS
    ]
    console.table(f"Op tables of {tables.device}", ("table", "measurements", "measured with"), rows, last_is_text=True)
    if tables.left_out:
        console.paragraph("Left out as implausible: " + "; ".join(tables.left_out) + ".")
    console.paragraph(f"Licence: {tables.licence}. {tables.attribution}")


def _record(counted: MeasuredAcceptance, conditions: Mapping[str, Any]) -> AcceptanceRecord:
    """The record of counts under conditions. A kind may be a drafter's, which then needs no other name."""
    facts = {**counted._asdict(), **conditions}
    kind = facts.get("kind", "serial")
    if kind in KIND_OF_DRAFTER:
        facts.setdefault("drafter", kind)
        kind = KIND_OF_DRAFTER[Drafter(kind)]
    facts["kind"] = None if kind == "none" else kind
    for field in ("target", "drafter"):
        if not facts.get(field):
            raise ValueError(f"--{field} is missing; the file of --from does not tell it")
    return AcceptanceRecord.checked(facts, source="--from")


def show_record(record: AcceptanceRecord) -> None:
    """Print a line per position: rates, and the length of chains that end there."""
    rows = [
        (str(position), f"{rate:.3f}", f"{conditional:.3f}", f"{record.length(position):.2f}")
        for position, (rate, conditional) in enumerate(zip(record.rates, record.conditional, strict=True), start=1)
    ]
    columns = ("position", "accepted up to here", "if all before were", "tokens per round, bonus included")
    console.table(f"Acceptance of {record.key}", columns, rows)
    console.paragraph(f"From {record.basis}. {record.note}.")
