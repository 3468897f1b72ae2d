"""Write the API reference, HTML pages made of the docstrings: `make docs`, or `python -m tests.api_reference FOLDER`.

Needs pdoc, which the extra `docs` installs; reads nothing from the network.
"""

import sys
import warnings
from pathlib import Path
from typing import Final

import pdoc
import pdoc.render

import swiftspec

# The package's own names, and the modules whose classes people read, fill or extend.
MODULES: Final = (
    "swiftspec",
    "swiftspec.artifacts.distributions",
    "swiftspec.files.document",
    "swiftspec.artifacts.goal",
    "swiftspec.timing.latency",
    "swiftspec.timing.step_key",
    "swiftspec.artifacts.plan",
    "swiftspec.artifacts.planned",
    "swiftspec.artifacts.profile",
    "swiftspec.artifacts.report",
    "swiftspec.timing.timeline",
    "swiftspec.artifacts.trace",
    "swiftspec.artifacts.workload",
    "swiftspec.engine.api",
    "swiftspec.errors",
    "swiftspec.policies",
    "swiftspec.policies.base",
    "swiftspec.policies.effects",
    "swiftspec.policies.request",
    "swiftspec.policies.tree",
    "swiftspec.reports.figures",
    "swiftspec.workload",
)


def build(folder: Path) -> None:
    """Write a page for every module, and an index. A name that cannot be documented is an error."""
    for name in swiftspec.__all__:  # pdoc documents what a module holds, and these are loaded when they are asked for
        setattr(swiftspec, name, getattr(swiftspec, name))
    pdoc.render.configure(docformat="numpy", show_source=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pdoc.pdoc(*MODULES, output_directory=folder)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
