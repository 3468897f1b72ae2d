"""Sentences about how text and machine differ from those traced and profiled."""

from swiftspec.artifacts.report import Report
from swiftspec.cli import console
from swiftspec.cli.columns import percent, signed_percent

__all__ = ["say_drift"]

_TEXTS_DIFFER = 0.02  # of tokens per round; replayed on the text that was measured, predictions agree better than that


def say_drift(report: Report) -> None:
    """How text and machine differ from what was traced and profiled, and what that explains."""
    if (text := report.text_error) is not None and abs(text) > _TEXTS_DIFFER:
        change = 1 / (1 + text) - 1
        console.say(
            f"Rounds brought {signed_percent(change)} tokens against the prediction, in the median over policies: "
            f"these prompts are {'easier' if change > 0 else 'harder'} than those traced."
        )
    if (agreement := report.retraced_agreement) is not None:
        errors = [error.tokens_per_round for p in report.policies if (error := p.retraced_error) is not None]
        console.say(
            f"Predicted again from the measured texts, tokens per round are off by {signed_percent(min(errors))} to "
            f"{signed_percent(max(errors))}, tokens/s by {percent(agreement[1])} in the median."
        )
    if not report.drift:
        return
    factors = [drift.factor - 1 for drift in report.drift]
    console.say(
        f"While this was measured, forwards took {signed_percent(min(factors))} to {signed_percent(max(factors))} "
        "against the profile, kind by kind. Re-timed predictions take that into account; their errors are the model's."
    )
