"""Loaders of load traces, which others recorded at their servers. No trace comes with the package."""

from collections.abc import Mapping

from swiftspec.workload.load_traces.adaserve import ADASERVE
from swiftspec.workload.load_traces.azure import AZURE
from swiftspec.workload.load_traces.burstgpt import BURSTGPT
from swiftspec.workload.load_traces.mooncake import MOONCAKE
from swiftspec.workload.load_traces.rows import LoadTraceFormat

__all__ = ["FORMATS"]

FORMATS: Mapping[str, LoadTraceFormat] = {
    "azure": AZURE,
    "burstgpt": BURSTGPT,
    "mooncake": MOONCAKE,
    "adaserve": ADASERVE,
}
