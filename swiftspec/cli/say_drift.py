"""Sentences about drift of text and machine since trace and profile; and regret, unless the machine was busy."""

from statistics import median

from swiftspec.artifacts.report import Report
from swiftspec.cli import console
from swiftspec.cli.columns import percent, signed_percent
from swiftspec.devices.contention import Contention

__all__ = ["regret", "say_drift"]

_TEXTS_DIFFER = 0.02  # of tokens per round; predictions replayed on the measured text are off by less
_MOST_DRIFT = 0.25  # of forwards, in the median over kinds; a quiet machine stays within 0.1


def regret(report: Report, contention: Contention | None) -> str:
    """Regret of the choice in a sentence, or why it is not given: on a busy machine it is chance."""
    if contention is not None and contention.is_busy:
        share = percent(contention.others_share)
        why = f"other processes took {share} of these cores' time while this was measured"
    elif report.drift and abs(change := median(drift.factor for drift in report.drift) - 1) > _MOST_DRIFT:
        why = f"forwards took {signed_percent(change)} against the profile, in the median over their kinds"
    else:
        (chosen,) = (policy for policy in report.policies if policy.policy == report.chosen)
        return f"Regret of the choice, {chosen.candidate}: {percent(report.regret)}"
    return (
        f"The machine was busy: {why}. These figures do not show which policy is fastest, so the regret of the choice "
        "is not given. Measure again while nothing else runs."
    )


def say_drift(report: Report) -> None:
    """Print how text and machine differ from trace and profile, and how much of the error that explains."""
    if (text := report.text_error) is not None and abs(text) > _TEXTS_DIFFER:
        change = 1 / (1 + text) - 1
        console.paragraph(
            f"Tokens per round were {signed_percent(change)} against the prediction, in the median over policies: "
            f"these prompts are {'easier' if change > 0 else 'harder'} than those traced."
        )
    if (agreement := report.retraced_agreement) is not None:
        errors = [error.tokens_per_round for p in report.policies if (error := p.retraced_error) is not None]
        console.paragraph(
            f"Re-traced, from the measured texts, tokens per round are off by {signed_percent(min(errors))} to "
            f"{signed_percent(max(errors))}, tokens/s by {percent(agreement[1])} in the median."
        )
    if not report.drift:
        return
    factors = [drift.factor - 1 for drift in report.drift]
    console.paragraph(
        f"During the measurement, forwards took {signed_percent(min(factors))} to {signed_percent(max(factors))} "
        "against the profile, by kind. Re-timed predictions account for that, so their errors are the simulator's."
    )
