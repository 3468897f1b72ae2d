"""`swiftspec import`: op tables from other people's measurements."""

from pathlib import Path

from swiftspec.cli import console
from swiftspec.cli.outputs import check_outputs, saved, write_json
from swiftspec.costmodel.importing import from_directory
from swiftspec.costmodel.op_tables import COLUMNS, OpTables
from swiftspec.devices import registered_device

__all__ = ["PACKAGE", "import_tables", "show_tables"]

PACKAGE = "aiconfigurator"


def import_tables(*, source: str, device: str, out: Path, json_path: Path | None = None) -> OpTables:
    """Read, print and save."""
    check_outputs(inputs={"--from": source}, out=out, json=json_path)
    device = registered_device(device, field="--device")
    if source == PACKAGE:
        from swiftspec.costmodel.aiconfigurator import from_package

        tables = from_package(device=device)
    else:
        tables = from_directory(Path(source), device=device)
    tables.save(out)
    show_tables(tables)
    console.say(f"\n{saved(out)}")
    content = {
        "tables": str(out),
        "device": tables.device,
        "licence": tables.licence,
        "attribution": tables.attribution,
        "left_out": list(tables.left_out),
        "measurements": {name: len(tables.tables[name]["latency_s"]) for name in COLUMNS},
        "sources": [source.model_dump() for source in tables.sources],
    }
    write_json(json_path, content)
    return tables


def show_tables(tables: OpTables) -> None:
    """Print the number of measurements per table, and who made them."""
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
