"""A program without peers, run to its end on real models in this thread: no processes, no launcher."""

from collections.abc import Callable, Mapping

from swiftspec.engine.driver.group_driver import GroupDriver
from swiftspec.engine.driver.request_part import RequestPart
from swiftspec.engine.model.forward_batch import Model
from swiftspec.engine.model.sampling.rejection_sampler import RejectionSampler
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.policies.effects import Program, Role
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.timing.timeline import Span


class _Empty:
    """Inbox of a program without peers."""

    def pump(self) -> None:
        pass

    def wait(self, until_s: float | None) -> None:
        raise RuntimeError(f"the program waits until {until_s} for a message that nobody will send")


def run_alone(
    program: Program,
    *,
    role: Role = Role.TARGET,
    models: Mapping[Role, Model],
    sampler: Sampler,
    commit: Callable[[tuple[int, ...]], None],
) -> list[Span]:
    """Run a program without peers to its end, in this thread; its spans. An error in it is raised."""
    residual = RejectionSampler(sampler) if sampler.needs_draft_probabilities else None
    part = RequestPart(role=role, models=models, peers=(), commit=commit, sampler=sampler, residual=residual)
    driver = GroupDriver(models=models, limits=BatchLimits(), inbox=_Empty(), ended=raise_error)
    driver.add(0, program, part, is_elastic=False)
    while len(driver):
        driver.advance()
        driver.step()
    return part.spans


def raise_error(_number: int, _spans: list[Span], _rows_asked: int, error: Exception | None, /) -> None:
    """The `ended` of a driver whose caller is the only one that its requests concern."""
    if error is not None:
        raise error
