"""Data shown by the figures of these tests."""

from swiftspec.artifacts.report import Report
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import Latency
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.timeline import Phase
from swiftspec.validation.validator import Measurement, make_report
from tests.cli.samples import ORIGIN, plan, serial_timeline
from tests.reports.html.samples import composed_profile


def report() -> Report:
    measurements = [
        Measurement(policy=policy, repeats=((serial_timeline(round_s=round_s),),), outputs=((1,),))
        for policy, round_s in (("swiftspec", 0.1), ("autoregressive", 0.4))
    ]
    return make_report(plan(), plan_sha256="0", measurements=measurements, origin=ORIGIN)


def forwards() -> dict[str, Latency]:
    profile = composed_profile()
    return {
        f"{phase} on 4": profile.step(StepKey(role, phase, degree=4, rows=1, context=0))
        for role, phase in ((Role.TARGET, Phase.VERIFY), (Role.DRAFT, Phase.EXPAND))
    }
