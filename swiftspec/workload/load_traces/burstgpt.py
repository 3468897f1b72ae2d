"""BurstGPT: CSV files of requests to ChatGPT and GPT-4, with failures."""

from collections.abc import Iterator
from pathlib import Path

from swiftspec.artifacts.workload import MOST_ID_CHARACTERS
from swiftspec.files.csv_rows import read_cells
from swiftspec.files.reading import shown
from swiftspec.workload.load_traces.rows import LoadTraceFormat, TraceRow, seconds, token_count

__all__ = ["BURSTGPT", "read_burstgpt"]

_TIME, _PROMPT, _OUTPUT = _COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
_CONVERSATION = "Session ID"  # since release 2, and of conversations only


def read_burstgpt(path: Path) -> Iterator[TraceRow]:
    """Rows of a trace. Failed requests have 0 response tokens; timestamps are seconds since the first day."""
    for where, cells in read_cells(path, _COLUMNS, optional=(_CONVERSATION,)):
        conversation = cells[_CONVERSATION]
        if len(conversation) > MOST_ID_CHARACTERS:
            raise ValueError(
                f"{where}: {_CONVERSATION} is {shown(conversation)}; expected at most {MOST_ID_CHARACTERS} characters"
            )
        yield TraceRow(
            where=where,
            time_s=seconds(cells[_TIME], _TIME, where),
            prompt_tokens=token_count(cells[_PROMPT], _PROMPT, where),
            output_tokens=token_count(cells[_OUTPUT], _OUTPUT, where),
            conversation=conversation or None,
        )


BURSTGPT = LoadTraceFormat(
    read=read_burstgpt,
    time_column=_TIME,
    licence="CC-BY 4.0, github.com/HPMLL/BurstGPT; cite BurstGPT (arXiv 2401.17644)",
)
