"""The report of a plan as one self-contained HTML file. No torch and no simulator here."""

from swiftspec.reports.html.page import render

__all__ = ["render"]
