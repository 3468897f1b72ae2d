"""`swiftspec study blockllm`: one table of it."""

import pytest

from swiftspec.cli.app import main


def test_one_table_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "blockllm", "--only", "kv"]) == 0
    said = capsys.readouterr().out
    assert "(c) KV of all on one of two replicas" in said
    assert "(a)" not in said
    (row,) = (line.split() for line in said.splitlines() if line.strip().startswith("200 "))
    assert set(row[3:]) == {"go", "move", "again"}
