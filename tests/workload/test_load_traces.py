"""Every loader, on a few lines in the format of those who publish the trace."""

from collections.abc import Callable
from pathlib import Path

import pytest

from swiftspec.artifacts.workload import RequestClass
from swiftspec.workload.load_traces import FORMATS, TraceRow, read_mooncake
from tests.workload import samples
from tests.workload.samples import written

Rows = Callable[[str, str], list[TraceRow]]


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    return lambda name, content: [*FORMATS[name].read(written(tmp_path, "f", content))]


def times(found: list[TraceRow]) -> list[float]:
    return [row.time_s for row in found]


def tokens(found: list[TraceRow]) -> list[tuple[int, int]]:
    return [(row.prompt_tokens, row.output_tokens) for row in found]


def test_azure_has_dates_to_the_microsecond(rows: Rows) -> None:
    found = rows("azure", samples.AZURE)
    assert times(found) == pytest.approx([0.0, 0.052, 0.098189, 29.479069], abs=1e-9)
    assert tokens(found) == [(4808, 10), (3180, 8), (110, 27), (1555, 19)]


def test_azure_of_2024_has_time_zones(rows: Rows) -> None:
    header, *_ = samples.AZURE.splitlines()
    found = rows("azure", f"{header}\n2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01+00:00,2399,6\n")
    assert times(found) == pytest.approx([0.0, 0.99007], abs=1e-9)


def test_a_byte_order_mark_and_other_columns_are_no_matter(rows: Rows) -> None:
    assert tokens(rows("azure", "\ufeffTIMESTAMP,X,GeneratedTokens,ContextTokens\n2024-05-10,x,1,2\n")) == [(2, 1)]


def test_burstgpt_has_sessions_and_failures(rows: Rows) -> None:
    found = rows("burstgpt", samples.BURSTGPT)
    assert times(found) == [19440110.0, 19440161.0, 19440192.0, 19440254.0]
    assert tokens(found) == [(906, 446), (36, 0), (1779, 123), (935, 178)]
    assert found[0].conversation == found[2].conversation == "1722ac82-0a46-4bf0-aa08-89794e7a2b3f"
    assert found[3].conversation is None
    assert [row.fault for row in found] == [None, "without output tokens", None, None]


def test_burstgpt_of_the_first_release_has_no_sessions(rows: Rows) -> None:
    found = rows("burstgpt", samples.BURSTGPT_1)
    assert (times(found), tokens(found)) == ([5.0, 45.0], [(472, 18), (1087, 230)])
    assert {row.conversation for row in found} == {None}


def test_mooncakes_stamps_are_spread_over_three_seconds_at_most(rows: Rows) -> None:
    found = rows("mooncake", samples.MOONCAKE)
    # Two until 3.0 s, one, two over 3 s although the next stamp is later, and two at the end as long as those before.
    assert times(found) == pytest.approx([0.0, 1.5, 3.0, 5.999, 7.499, 15.0, 16.5])
    assert tokens(found)[:2] == [(6758, 500), (7322, 490)]


def test_mooncakes_own_times_stay(rows: Rows) -> None:
    line = '{{"timestamp": {}, "input_length": 1, "output_length": 1, "hash_ids": []}}\n'
    stamps = (0, 40, 277, 471, 529)
    found = rows("mooncake", "".join(line.format(stamp) for stamp in stamps))
    assert times(found) == pytest.approx([stamp / 1000 for stamp in stamps])


LINE = '{{"timestamp": {}, "input_length": 1, "output_length": 1, "hash_ids": []{}}}\n'


@pytest.mark.parametrize(
    ("stamps", "more", "unit_s"),
    [
        ((0, 40, 277, 471, 529), "", 1e-3),  # Mooncake
        ((0.0, 27000.0, 54000.0), "", 1e-3),  # whole, written as floats
        ((0.0, 0.2, 0.4), "", 1.0),  # vllm-project/guidellm, pull request 948
        ((0, 61, 70), ', "chat_id": 159', 1.0),  # Qwen-Bailian, by chance without fractions
        ((7,), "", 1e-3),
    ],
)
def test_stamps_tell_their_unit(rows: Rows, stamps: tuple[float, ...], more: str, unit_s: float) -> None:
    found = rows("mooncake", "".join(LINE.format(stamp, more) for stamp in stamps))
    assert times(found) == pytest.approx([stamp * unit_s for stamp in stamps])


@pytest.mark.parametrize(
    ("stamps", "said"),
    [
        (
            (0, 1, 2),
            r"rises by 1 a row, 1e\+03 requests/s if it is in ms and 1 if in s; expected the unit, time_unit=s",
        ),
        (
            (0.5, 300.25, 610.0),
            r"rises by 305 a row, 3\.28 requests/s if it is in ms and 0\.00328 if in s; expected the",
        ),
    ],
)
def test_stamps_that_do_not_tell_need_a_unit(tmp_path: Path, stamps: tuple[float, ...], said: str) -> None:
    path = written(tmp_path, "f", "".join(LINE.format(stamp, "") for stamp in stamps))
    with pytest.raises(ValueError, match=said):
        [*FORMATS["mooncake"].read(path)]
    for unit, unit_s in (("s", 1.0), ("ms", 1e-3)):
        assert times([*read_mooncake(path, unit)])[-1] == pytest.approx(stamps[-1] * unit_s)


def test_a_turn_after_an_answer_is_refused_truly(rows: Rows) -> None:
    # ai-dynamo/aiperf: later turns of a session have a delay after the answer before.
    first = '{"session_id": "session-1", "timestamp": 0, "input_length": 100, "output_length": 40}\n'
    later = '{"session_id": "session-1", "delay": 500, "input_length": 150, "output_length": 50}\n'
    with pytest.raises(
        ValueError, match=r"line 2: timestamp is missing, and delay is 500, of a turn that waits for an"
    ):
        rows("mooncake", first + later)


@pytest.mark.parametrize(("tokens", "blocks", "size"), [(6758, 14, 512), (521, 33, 16), (100, 4, 32), (521, 400, 512)])
def test_blocks_tell_their_size(rows: Rows, tokens: int, blocks: int, size: int) -> None:
    line = f'{{"timestamp": 0, "input_length": {tokens}, "output_length": 1, "hash_ids": {[*range(blocks)]}}}\n'
    (found,) = rows("mooncake", line)
    assert (found.block_tokens, len(found.blocks)) == (size, min(blocks, -(-tokens // size)))


def test_a_row_with_odd_blocks_does_not_change_their_size(rows: Rows) -> None:
    line = '{{"timestamp": {}, "input_length": {}, "output_length": 1, "hash_ids": {}}}\n'
    sizes = ((521, 33), (90, 6)) * 5 + ((200, 3),)
    found = rows("mooncake", "".join(line.format(700 * i, n, [*range(k)]) for i, (n, k) in enumerate(sizes)))
    assert {row.block_tokens for row in found} == {16}


def test_adaserve_has_a_class_for_every_limit(rows: Rows) -> None:
    found = rows("adaserve", samples.ADASERVE)
    assert times(found) == pytest.approx([0.0, 7.7995, 8.2095])
    assert tokens(found) == [(100, 128), (810, 128), (14, 128)]
    assert [row.request_class for row in found] == [
        RequestClass(name="slo-1.2x"),
        RequestClass(name="slo-150ms", tpot_s=0.15),
        RequestClass(name="slo-50ms", tpot_s=0.05),
    ]


AZURE_COLUMNS = "expected TIMESTAMP, ContextTokens, GeneratedTokens"
MOONCAKE_FIELDS = "timestamp, input_length, output_length"
ADASERVE_FIELDS = "emission_time_ms, input_length, output_length, slo_ratio"


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("azure", samples.BURSTGPT, f", line 1: column TIMESTAMP is missing; {AZURE_COLUMNS}"),
        ("azure", samples.MOONCAKE, f", line 1: column TIMESTAMP is missing; {AZURE_COLUMNS}"),
        ("azure", "", f", line 1: column TIMESTAMP is missing; {AZURE_COLUMNS}"),
        ("burstgpt", samples.AZURE, ", line 1: column Timestamp is missing; expected Timestamp, Request tokens, Resp"),
        ("mooncake", samples.AZURE, ", line 1: not a JSON document ("),
        ("mooncake", samples.ADASERVE, ", line 1: not a JSON document ("),
        ("mooncake", '{"timestamp": 0}', f", line 1: input_length is missing; expected {MOONCAKE_FIELDS}"),
        ("mooncake", "[1]", f", line 1: a JSON list; expected an object with {MOONCAKE_FIELDS}"),
        ("adaserve", samples.AZURE, ": not a JSON document ("),
        ("adaserve", "{}", f": a JSON dict; expected a list of objects with {ADASERVE_FIELDS}"),
        ("adaserve", "[3]", f", request 1: a JSON int; expected an object with {ADASERVE_FIELDS}"),
        ("adaserve", '[{"emission_time_ms": 0}]', f", request 1: input_length is missing; expected {ADASERVE_FIELDS}"),
    ],
)
def test_a_file_of_another_kind_is_named_with_what_was_expected(
    rows: Rows, tmp_path: Path, name: str, content: str, complaint: str
) -> None:
    with pytest.raises(ValueError, match=r"expected|JSON") as caught:
        rows(name, content)
    assert str(caught.value).startswith(f"{tmp_path / 'f'}{complaint}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("azure", "noon,3,4", "TIMESTAMP is 'noon'; expected a date and time"),
        ("azure", "2024-05-10,3.5,4", "ContextTokens is '3.5'; expected a whole number from 0 to 10000000"),
        ("azure", "2024-05-10,3,-4", "GeneratedTokens is '-4'; expected a whole number"),
        ("azure", "2024-05-10,3", "2 columns; GeneratedTokens is missing"),
        ("burstgpt", "-1,3,4", "Timestamp is '-1'; expected a number of 0 or more"),
        ("burstgpt", "nan,3,4", "Timestamp is 'nan'; expected a number of 0 or more"),
        ("burstgpt", "1,,4", "Request tokens is ''; expected a whole number"),
        ("mooncake", '{"timestamp": "x", "input_length": 1, "output_length": 1}', "timestamp is 'x'; expected a num"),
        ("mooncake", '{"timestamp": 0, "input_length": true, "output_length": 1}', "input_length is True; expected a"),
        ("mooncake", '{"timestamp": 0, "input_length": 1e9, "output_length": 1}', "input_length is 1000000000.0; exp"),
    ],
)
def test_a_cell_that_cannot_be_is_named_with_its_line(rows: Rows, name: str, content: str, complaint: str) -> None:
    headers = {
        "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n",
        "burstgpt": "Timestamp,Request tokens,Response tokens\n",
    }
    with pytest.raises(ValueError, match="line") as caught:
        rows(name, headers.get(name, "\n") + content)
    assert f"f, line 2: {complaint}" in str(caught.value)


@pytest.mark.parametrize("limit", ["0", "true", '"fast"', "null", "1e9"])
def test_a_limit_that_cannot_be_is_named(rows: Rows, limit: str) -> None:
    item = f'{{"emission_time_ms": 0, "input_length": 1, "output_length": 1, "slo_ratio": {limit}}}'
    with pytest.raises(ValueError, match=r"f, request 1: slo_ratio is .*; expected a ratio, or a negative limit in ms"):
        rows("adaserve", f"[{item}]")


def test_a_session_that_is_too_long_is_named(rows: Rows) -> None:
    header = "Timestamp,Session ID,Request tokens,Response tokens\n"
    with pytest.raises(ValueError, match=r"f, line 2: Session ID is 'xxx.*; expected at most 64 characters"):
        rows("burstgpt", f"{header}0,{'x' * 65},1,1\n")


def test_every_format_has_a_licence_and_its_source() -> None:
    for load_format in FORMATS.values():
        assert load_format.licence.startswith(("CC-BY 4.0, github.com/", "Apache-2.0, github.com/"))
