import json
import os
import re
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import Field, model_validator

from swiftspec.files.document import Document, Facts, ModelRef, Origin, Spread, file_sha256

ORIGIN = Origin(command="swiftspec test", created_utc="2026-01-01T00:00:00+00:00", versions={}, device="none")


class Point(Facts):
    rows: int = Field(ge=1)
    latency_s: float


class Table(Document):
    schema_name: ClassVar[str] = "swiftspec.table"
    schema_version: ClassVar[int] = 2

    title: str
    points: tuple[Point, ...]

    @model_validator(mode="after")
    def _check(self) -> "Table":
        if not self.points:
            raise ValueError("Points are empty; expected at least one")
        return self


TABLE = Table(origin=ORIGIN, title="t", points=(Point(rows=1, latency_s=0.5), Point(rows=2, latency_s=0.75)))


def content(**changes: Any) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads(TABLE.to_json())
    return whole | changes


def complaint(path: Path, text: str | bytes) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: ") as caught:
        Table.load(path)
    return str(caught.value)


def test_saved_document_loads_as_it_was(tmp_path: Path) -> None:
    TABLE.save(tmp_path / "table.json")
    assert Table.load(tmp_path / "table.json") == TABLE


def test_saved_document_says_first_what_it_is(tmp_path: Path) -> None:
    TABLE.save(tmp_path / "table.json")
    assert list(json.loads((tmp_path / "table.json").read_text()))[:3] == ["schema", "version", "origin"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": "swiftspec.plan"}, "schema is 'swiftspec.plan'; expected 'swiftspec.table'"),
        ({"version": 3}, "version of swiftspec.table is 3; this swiftspec reads version 2"),
        ({"title": None}, "title is None; input should be a valid string"),
        ({"colour": "red"}, "colour is 'red'; extra inputs are not permitted"),
        ({"points": [{"rows": 1, "latency_s": 0.5}, {"rows": 2}]}, "points[1].latency_s is missing"),
        ({"points": [{"rows": 0, "latency_s": 0.5}]}, "points[0].rows is 0; input should be greater than or equal to"),
        ({"points": [{"rows": 1, "latency_s": "ten"}]}, "points[0].latency_s is 'ten'; input should be a valid number"),
        ({"points": [{"rows": 1, "latency_s": float("nan")}]}, "points[0].latency_s is nan; input should be a finite"),
        ({"points": [{"rows": 1, "latency_s": float("inf")}]}, "points[0].latency_s is inf; input should be a finite"),
        ({"points": []}, "points are empty; expected at least one"),
        ({"origin": {"command": "x"}}, "origin.created_utc is missing"),
    ],
)
def test_what_is_wrong_is_named_with_file_field_and_value(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = tmp_path / "table.json"
    said = complaint(path, json.dumps(content(**changes)))
    assert said.startswith(f"{path}: {message}")
    assert "\n" not in said


def test_missing_field_is_named(tmp_path: Path) -> None:
    without = content()
    del without["title"]
    path = tmp_path / "table.json"
    assert complaint(path, json.dumps(without)) == f"{path}: title is missing"


@pytest.mark.parametrize("text", ["", "{", b"\xff\xfe", '{"schema": "swiftspec.table",}'])
def test_what_is_no_json_is_refused(tmp_path: Path, text: str | bytes) -> None:
    assert complaint(tmp_path / "x.json", text).startswith(f"{tmp_path}/x.json: not a JSON document (")


@pytest.mark.parametrize("text", ["[1, 2]", "3", "null", "{}"])
def test_json_of_another_kind_is_refused(tmp_path: Path, text: str) -> None:
    assert "schema is " in complaint(tmp_path / "x.json", text)


def test_long_values_are_shortened(tmp_path: Path) -> None:
    said = complaint(tmp_path / "x.json", json.dumps(content(points="x" * 500)))
    assert "..." in said
    assert len(said) < len(str(tmp_path)) + 200


def test_absent_file_and_directory_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(ValueError, match=f"{path}: cannot be read"):
            Table.load(path)


def test_facts_are_frozen_and_know_no_nan() -> None:
    with pytest.raises(ValueError, match="frozen"):
        TABLE.title = "u"
    with pytest.raises(ValueError, match="finite"):
        Spread(median=float("nan"), p95=1.0)


def test_document_that_holds_nan_after_all_is_not_written(tmp_path: Path) -> None:
    broken = TABLE.model_copy(
        update={"points": (Point(rows=1, latency_s=1.0).model_copy(update={"latency_s": float("nan")}),)}
    )
    with pytest.raises(ValueError, match="JSON compliant"):
        broken.save(tmp_path / "table.json")
    assert os.listdir(tmp_path) == []


def test_origin_says_command_time_versions_and_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/swiftspec", "run", "--prompt", "a b"])
    origin = Origin.here()
    assert origin.command == "swiftspec run --prompt 'a b'"
    assert origin.created_utc.endswith("+00:00")
    assert {"python", "swiftspec-llm", "torch", "numpy"} <= origin.versions.keys()
    assert origin.device.endswith(f"{len(os.sched_getaffinity(0))} cores")


def test_model_reference_reads_as_one_phrase() -> None:
    assert str(ModelRef(model="demo/draft", dtype="float32")) == "demo/draft in float32"
    inflated = ModelRef(model="demo/target", inflate="layers=24", dtype="bfloat16")
    assert str(inflated) == "demo/target inflated to layers=24 in bfloat16"


def test_file_hash_is_sha256(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    assert file_sha256(tmp_path / "f") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
