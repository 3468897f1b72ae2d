"""The whole backtest, parallel over cores."""

from dataclasses import replace

import joblib

from swiftspec.planner.search.backends import run_parallel
from swiftspec.progress import Progress
from swiftspec.studies.backtest.acceptance import acceptance_rows
from swiftspec.studies.backtest.adaptive_verification import adaptive_verification_rows
from swiftspec.studies.backtest.amusd import amusd_rows
from swiftspec.studies.backtest.decoupled import decoupled_rows
from swiftspec.studies.backtest.head_acceptance import by_text_rows, head_acceptance_rows
from swiftspec.studies.backtest.head_speeds import head_speed_rows
from swiftspec.studies.backtest.loads import INFERENCEX, POINTS, SPARSE_POINTS, STAGES, load_constants, load_section
from swiftspec.studies.backtest.lock_step import lock_step_rows
from swiftspec.studies.backtest.losses import loss_rows
from swiftspec.studies.backtest.nano_pearl import batch_rows, single_rows, windows
from swiftspec.studies.backtest.rows import Backtest, Section
from swiftspec.studies.backtest.sparse_systems import sparse_system_rows
from swiftspec.studies.backtest.swiftspec_paper import paper_constants, paper_rows
from swiftspec.studies.backtest.systems import system_rows


def run(*, num_jobs: int, done: Progress) -> Backtest:
    """Run every section.

    Parameters
    ----------
    num_jobs : int
        Processes; -1 for one per core.
    done : Progress
        Receives the title of the section that ended last.
    """
    # The longest first, so that cores finish together.
    makers = (
        _inferencex,
        _paper,
        _stages,
        _acceptance,
        _pearl,
        _systems,
        _decoupled,
        _serving,
        _sparse,
        _lock_step,
        _head_speeds,
        _adaptive_verification,
        _pearl_batches,
        _head_acceptance,
        _by_text,
    )
    sections = []
    for section in run_parallel((joblib.delayed(maker)() for maker in makers), num_jobs):
        sections.append(section)
        done(len(sections), len(makers), section.title)
    return Backtest(sections=tuple(sections))


def _paper() -> Section:
    return Section(title="SwiftSpec", rows=tuple(paper_rows()), constants=tuple(paper_constants()))


def _acceptance() -> Section:
    rows, constants = acceptance_rows()
    return Section(title="Acceptance", rows=tuple(rows), constants=tuple(constants))


def _systems() -> Section:
    return Section(title="Other systems", rows=(*system_rows(), *amusd_rows()))


def _serving() -> Section:
    return replace(load_section(POINTS), constants=load_constants())


def _sparse() -> Section:
    section = load_section(SPARSE_POINTS)
    return replace(section, rows=(*section.rows, *sparse_system_rows()))


def _stages() -> Section:
    return load_section(STAGES)


def _inferencex() -> Section:
    return load_section(INFERENCEX)


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


def _lock_step() -> Section:
    return Section(title="PEARL and SpecBranch", rows=tuple(lock_step_rows()))


def _head_acceptance() -> Section:
    return Section(title="Acceptance of heads", rows=tuple(head_acceptance_rows()))


def _by_text() -> Section:
    return Section(title="Acceptance by text", rows=tuple(by_text_rows()))


def _head_speeds() -> Section:
    rows, constants = head_speed_rows()
    return Section(title="Heads and parallel drafts", rows=(*rows, *loss_rows()), constants=tuple(constants))
