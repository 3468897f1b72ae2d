"""Workloads: many requests with arrivals, lengths and classes, drawn from distributions or replayed."""

from swiftspec.artifacts.distributions import Arrivals, Lengths
from swiftspec.artifacts.workload import RequestClass, Workload
from swiftspec.workload.generate import make_workload, with_arrivals
from swiftspec.workload.load_traces import FORMATS
from swiftspec.workload.prompts import Prefixes, PromptLengths, lengths_in_prompts, lengths_in_trace
from swiftspec.workload.replay import replay

__all__ = [
    "FORMATS",
    "Arrivals",
    "Lengths",
    "Prefixes",
    "PromptLengths",
    "RequestClass",
    "Workload",
    "lengths_in_prompts",
    "lengths_in_trace",
    "make_workload",
    "replay",
    "with_arrivals",
]
