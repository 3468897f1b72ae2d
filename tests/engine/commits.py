"""Requests of a launcher whose commits are taken as they come."""

from collections.abc import Callable
from contextlib import closing

from swiftspec.engine.launcher import Generation, Launcher
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.engine.process.interrupts import interrupts_noted
from swiftspec.engine.requests import Task
from swiftspec.policies import Policy, Request


def taken(
    engine: Launcher, policy: Policy, request: Request, take: Callable[[tuple[int, ...]], None], *, name: str = "x"
) -> Generation:
    """One request, start to end. An error of `take` ends it, and Ctrl-C with the tokens so far."""
    task = Task(prompt_id=name, request=request)
    with (
        interrupts_noted() as interrupted,
        closing(engine.stream(policy, task, sampler=Sampler(), interrupted=interrupted)) as commits,
    ):
        while True:
            try:
                tokens = next(commits)
            except StopIteration as finished:
                generation: Generation = finished.value
                return generation
            take(tokens)
