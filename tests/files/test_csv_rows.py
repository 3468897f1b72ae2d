from pathlib import Path

import pytest

from swiftspec.files.csv_rows import read_cells


def rows(path: Path, text: str | bytes, *, optional: tuple[str, ...] = ()) -> list[tuple[str, dict[str, str]]]:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return [*read_cells(path, ("a", "b"), optional=optional)]


def test_cells_come_by_name_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    found = rows(path, '\ufeffb,x,a\n1,2,"3, ""4"""\n\n5,6,7\n')
    assert found == [(f"{path}, line 2", {"a": '3, "4"', "b": "1"}), (f"{path}, line 4", {"a": "7", "b": "5"})]


def test_an_optional_column_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    assert rows(path, "a,b\n1,2\n", optional=("c",))[0][1] == {"a": "1", "b": "2", "c": ""}
    assert rows(path, "a,c,b\n1,3,2\n", optional=("c",))[0][1] == {"a": "1", "b": "2", "c": "3"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", ", line 1: column a is missing; expected a, b"),
        ("a,c\n1,2\n", ", line 1: column b is missing; expected a, b"),
        ("a,b\n1\n", ", line 2: 1 columns; b is missing"),
        (b"a,b\n\xff,1\n", ": not a CSV file ("),
        ('a,b\n"' + "x" * 200_000 + '",1\n', ": not a CSV file (field larger than field limit"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_line(tmp_path: Path, text: str | bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=r"f\.csv") as caught:
        rows(tmp_path / "f.csv", text)
    assert str(caught.value).startswith(f"{tmp_path / 'f.csv'}{complaint}")
