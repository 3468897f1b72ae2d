"""Data shown by the figures of these tests."""

from swiftspec.artifacts.report import Report
from swiftspec.validation.validator import Measurement, make_report
from tests.cli.samples import ORIGIN, plan, serial_timeline


def report() -> Report:
    measurements = [
        Measurement(policy=policy, repeats=((serial_timeline(round_s=round_s),),), outputs=((1,),))
        for policy, round_s in (("swiftspec", 0.1), ("autoregressive", 0.4))
    ]
    return make_report(plan(), plan_sha256="0", measurements=measurements, origin=ORIGIN)
