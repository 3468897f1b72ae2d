"""The report of a plan, or of advice, as one self-contained HTML file. No torch and no simulator here."""

from swiftspec.reports.html.page import render, render_advice

__all__ = ["render", "render_advice"]
