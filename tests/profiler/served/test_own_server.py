"""This package's server measured from outside, beside what it measures inside."""

from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest

from swiftspec.artifacts.profile import Profile
from swiftspec.files.document import ModelRef
from swiftspec.loadtest.client import ServerClient
from swiftspec.machine import cores_here
from swiftspec.policies.effects import Role
from swiftspec.profiler.served.engine_profile import probed_server, profile_url
from swiftspec.profiler.served.measure import Measurements, ProbeSizes, measure_servers
from swiftspec.profiler.served.probes import Drafting
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.timeline import Phase
from swiftspec.validation.load_steps import shared_steps
from tests.cli.samples import plan
from tests.server.running import running

pytestmark = pytest.mark.alone

# So that a step takes some 20 ms: HTTP takes half of one.
LARGE = ModelRef(model="demo/target", inflate="layers=24,hidden=768", dtype="float32")
DRAFT = ModelRef(model="demo/draft", dtype="float32")
WITHIN = 0.1


class Both(NamedTuple):
    """The profile from outside, one pass with the cores watched, and the server's own seconds of steps by requests."""

    profile: Profile
    watched: Measurements
    inside: dict[int, float]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    folder: Path = tmp_path_factory.mktemp("outside")
    plan(target=LARGE, draft=DRAFT).save(folder / "plan.json")
    settings = ("--policy", "autoregressive", "--set", "max_running=4,max_context=512,keep_timelines=512")
    with running(folder / "plan.json", *settings, log=folder / "server.log") as server:
        found = profile_url(server.url, "demo/target", "demo/draft", max_sequences=2, minutes=0.5)
        plain = probed_server(server.url, Drafting.PLAIN, lengths=lambda _: 0, cores=cores_here())
        watched = measure_servers([plain], ProbeSizes(sequences=1, longest=64), most_s=0, progress=lambda *_: None)
        timelines = ServerClient(server.url).timelines()
    lengths = [sum(span.rows for span in one.spans if span.phase is Phase.PREFILL) for one in timelines]
    inside: dict[int, list[float]] = defaultdict(list)
    for step in shared_steps(timelines, lengths):
        if step.phase is Phase.VERIFY and step.role is Role.TARGET and step.num_rows == step.num_requests:
            inside[step.num_requests].append(step.seconds)
    return Both(found, watched, {count: median(seconds) for count, seconds in inside.items()})


def test_the_server_says_what_it_is(both: Both) -> None:
    served = both.profile.served
    assert served is not None
    assert served.engine == "swiftspec"
    assert served.methods == ()


@pytest.mark.parametrize("requests", [1, 2])
def test_steps_take_as_long_as_inside(both: Both, requests: int) -> None:
    profile, _, inside = both
    assert profile.served is not None
    short = min((one for one in profile.served.measured if one.sequences == requests), key=lambda one: one.cache_tokens)
    assert short.seconds == pytest.approx(inside[requests], rel=WITHIN)


def test_watching_the_cores_leaves_the_steps_as_they_are(both: Both) -> None:
    assert both.profile.served is not None
    assert both.profile.served.pace_s is None
    assert both.watched.pace_s is not None
    one = next(step for step in both.watched.steps if step.work.sequences == 1)
    assert one.seconds == pytest.approx(both.inside[1], rel=2 * WITHIN)


def test_the_fit_gives_back_what_was_measured(both: Both) -> None:
    profile = both.profile
    assert profile.served is not None
    assert profile.served.median_error < WITHIN
    one = profile.step(StepKey(Role.TARGET, Phase.VERIFY, 1, 1, 16)).mean_s
    assert one == pytest.approx(both.inside[1], rel=2 * WITHIN)
