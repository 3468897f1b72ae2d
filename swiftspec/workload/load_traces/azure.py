"""Azure's LLM inference traces of 2023 and 2024: CSV files with a date for every request."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from swiftspec.files.csv_rows import read_cells
from swiftspec.files.reading import shown
from swiftspec.workload.load_traces.rows import LoadTraceFormat, TraceRow, token_count

__all__ = ["AZURE", "read_azure"]

_TIME, _PROMPT, _OUTPUT = _COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read_azure(path: Path) -> Iterator[TraceRow]:
    """Rows of a trace, as `2023-11-16 18:17:03.9799600,4808,10`; dates of 2024 end in a time zone."""
    first = None
    for where, cells in read_cells(path, _COLUMNS):
        moment = _moment(cells[_TIME], where)
        first = first or moment
        yield TraceRow(
            where=where,
            time_s=(moment - first).total_seconds(),
            prompt_tokens=token_count(cells[_PROMPT], _PROMPT, where),
            output_tokens=token_count(cells[_OUTPUT], _OUTPUT, where),
        )


def _moment(text: str, where: str) -> datetime:
    """A date in UTC, to the microsecond."""
    try:
        moment = datetime.fromisoformat(text.strip())
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{where}: {_TIME} is {shown(text)}; expected a date and time") from error


AZURE = LoadTraceFormat(
    read=read_azure,
    time_column=_TIME,
    licence="CC-BY 4.0, github.com/Azure/AzurePublicDataset; cite Splitwise (ISCA 2024) or DynamoLLM (HPCA 2025)",
)
