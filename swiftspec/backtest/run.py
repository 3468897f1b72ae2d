"""The whole backtest, parallel over cores."""

from pathlib import Path

import joblib

from swiftspec.backtest.acceptance import acceptance_rows
from swiftspec.backtest.adaptive_verification import adaptive_verification_rows
from swiftspec.backtest.decoupled import decoupled_rows
from swiftspec.backtest.head_acceptance import head_acceptance_rows
from swiftspec.backtest.head_speeds import head_speed_rows
from swiftspec.backtest.losses import loss_rows
from swiftspec.backtest.nano_pearl import batch_rows, single_rows, windows
from swiftspec.backtest.rows import Backtest, Section
from swiftspec.backtest.serving import SPARSE_POINTS, read_points, serving_rows
from swiftspec.backtest.sparse_systems import sparse_system_rows
from swiftspec.backtest.swiftspec_paper import paper_constants, paper_rows
from swiftspec.backtest.systems import system_rows
from swiftspec.planner.backends import run_parallel
from swiftspec.progress import Progress

__all__ = ["run"]


def run(*, e2e: Path | None, num_jobs: int, done: Progress) -> Backtest:
    """Run the shipped sections or, given a CSV file with the columns of the serving points, only that file's points.

    Parameters
    ----------
    num_jobs : int
        Processes; -1 for one per core.
    done : Progress
        Receives the title of the section that ended last.
    """
    if e2e is not None:
        rows, constants = serving_rows(e2e)
        section = Section(title=f"Serving points of {e2e}", rows=tuple(rows), constants=tuple(constants))
        return Backtest(sections=(section,), skipped=read_points(e2e).skipped)
    # The longest first, so that cores finish together.
    makers = (
        _paper,
        _acceptance,
        _pearl,
        _systems,
        _decoupled,
        _serving,
        _sparse,
        _head_speeds,
        _adaptive_verification,
        _pearl_batches,
        _head_acceptance,
    )
    sections = []
    for section in run_parallel((joblib.delayed(maker)() for maker in makers), num_jobs):
        sections.append(section)
        done(len(sections), len(makers), section.title)
    return Backtest(sections=tuple(sections), skipped=read_points(SPARSE_POINTS).skipped)


def _paper() -> Section:
    return Section(title="SwiftSpec", rows=tuple(paper_rows()), constants=tuple(paper_constants()))


def _acceptance() -> Section:
    rows, constants = acceptance_rows()
    return Section(title="Acceptance", rows=tuple(rows), constants=tuple(constants))


def _systems() -> Section:
    return Section(title="Other systems", rows=tuple(system_rows()))


def _serving() -> Section:
    rows, constants = serving_rows()
    return Section(title="Serving points", rows=tuple(rows), constants=tuple(constants))


def _sparse() -> Section:
    rows, _ = serving_rows(SPARSE_POINTS)
    return Section(title="Sparse targets", rows=(*rows, *sparse_system_rows()))


def _adaptive_verification() -> Section:
    rows, constants = adaptive_verification_rows()
    return Section(title="Draft lengths under load", rows=tuple(rows), constants=tuple(constants))


def _decoupled() -> Section:
    rows, constants = decoupled_rows()
    return Section(title="Decoupled batches", rows=tuple(rows), constants=tuple(constants))


def _pearl() -> Section:
    return Section(title="PEARL, one request", rows=tuple(single_rows()), constants=tuple(windows()))


def _pearl_batches() -> Section:
    return Section(title="PEARL, batches", rows=tuple(batch_rows()))


def _head_acceptance() -> Section:
    return Section(title="Acceptance of heads", rows=tuple(head_acceptance_rows()))


def _head_speeds() -> Section:
    rows, constants = head_speed_rows()
    return Section(title="Heads and parallel drafts", rows=(*rows, *loss_rows()), constants=tuple(constants))
