"""The rooms of the package, and which may import which: `test_architecture` checks the code against this table."""

from collections.abc import Mapping

# Room -> what its modules may import beside the standard library: rooms below it and third-party packages. A room is a
# folder of swiftspec, a folder of the engine, or a module that lies in none; rooms stand in their order, lowest first.
# All may import errors.
TORCH = ("torch", "numpy", "safetensors")
ROOMS: Mapping[str, frozenset[str]] = {
    "errors": frozenset(),
    "version": frozenset(),
    "progress": frozenset(),
    "interpreters": frozenset(),
    "machine": frozenset(),
    "parent_death": frozenset(),
    "files": frozenset({"machine", "numpy", "pydantic", "pydantic_core"}),
    "policies": frozenset(),
    "models": frozenset({"files", "policies", "tokenizers"}),
    "devices": frozenset({"machine", "models", "torch"}),
    "scheduler": frozenset({"policies"}),
    "engines": frozenset({"devices", "models", "scheduler"}),
    "timing": frozenset({"engines", "files", "policies", "numpy", "pydantic"}),
    "artifacts": frozenset(
        {"engines", "timing", "files", "models", "policies", "scheduler", "numpy", "scipy", "pydantic"}
    ),
    "workload": frozenset({"artifacts", "files", "numpy"}),
    "acceptance": frozenset({"timing", "artifacts", "files", "models", "policies", "numpy", "scipy", "pydantic"}),
    "costmodel": frozenset(
        {"timing", "artifacts", "devices", "engines", "files", "models", "policies", "numpy", "pyarrow"}
    ),
    "export": frozenset({"acceptance", "artifacts", "devices", "engines", "files", "models", "policies", "pydantic"}),
    "external": frozenset({"engines", "export", "files", "interpreters", "machine", "parent_death", "progress"}),
    "loadtest": frozenset({"timing", "artifacts", "files", "numpy", "pydantic"}),
    "simulator": frozenset({"timing", "artifacts", "policies", "scheduler", "simpy", "numpy"}),
    "planner": frozenset(
        {
            "files",
            "timing",
            "simulator",
            "scheduler",
            "engines",
            "costmodel",
            "acceptance",
            "artifacts",
            "export",  # what an engine can run
            "devices",
            "models",
            "policies",
        }
        | {"parent_death", "progress"}
        | {"interpreters", "joblib", "dask", "distributed", "ray", "numpy"}
    ),
    "kernels": frozenset({"files", "torch", "triton"}),
    "engine.channel": frozenset({"files", "policies", "pydantic", "zmq"}),
    # What runs in another engine: it loads neither torch nor transformers.
    "drafter": frozenset({"engine.channel", "models", "policies"}),
    "engine.parallel": frozenset({"engine.channel", "torch", "zmq"}),
    "engine.model": frozenset(
        {"engine.parallel", "timing", "devices", "files", "kernels", "models", "policies", *TORCH}
    ),
    "engine.driver": frozenset({"engine.model", "timing", "policies", "scheduler"}),
    "engine.process": frozenset(
        {"engine.channel", "engine.driver", "engine.model", "engine.parallel"}
        | {"timing", "devices", "files", "interpreters", "parent_death", "policies", "scheduler", "torch", "zmq"}
    ),
    "engine.cluster": frozenset(
        {"engine.channel", "engine.parallel", "engine.process", "artifacts", "devices", "interpreters"}
        | {"machine", "policies", "version", "torch", "ray"}
    ),
    # kernels: what forked processes will load is compiled before they start.
    "engine": frozenset(
        {
            "engine.channel",
            "engine.model",
            "engine.process",
            "artifacts",
            "devices",
            "files",
            "kernels",
            "models",
            "policies",
        }
        | {"timing", "scheduler"}
    ),
    "profiler": frozenset(
        {
            "timing",
            "engine",
            "engine.channel",
            "engine.model",
            "engine.parallel",
            "engine.process",
            "artifacts",
            "costmodel",
            # Of servers, from outside.
            "engines",
            "export",
            "external",
            "loadtest",
        }
        | {"devices", "files", "interpreters", "models", "parent_death", "policies", "progress", "scheduler"}
        | {"torch", "numpy", "scipy"}
    ),
    "validation": frozenset(
        {
            "timing",
            "engine",
            "loadtest",  # how requests of a load are sent in turn
            "engine.model",
            "engine.process",
            "profiler",
            "planner",
            "simulator",
            "scheduler",
        }
        | {"acceptance", "artifacts", "costmodel", "devices", "engines", "files", "models", "policies", "progress"}
        | {"numpy"}
    ),
    "reports": frozenset(
        {"timing", "artifacts", "devices", "engines", "files", "models", "policies", "matplotlib", "numpy"}
    ),
    "demo": frozenset(),
    "advise": frozenset(
        {"acceptance", "artifacts", "engines", "files", "loadtest", "planner", "progress", "scheduler", "validation"}
        | {"numpy"}
    ),
    # The engine as everyone uses it: see NEVERS.
    "server": frozenset(
        {"timing", "engine", "artifacts", "files", "interpreters", "models", "version"}
        | {"pydantic", "starlette", "uvicorn", "prometheus_client", "jinja2"}
    ),
    "api": frozenset(
        {
            "advise",
            "files",
            "timing",
            "acceptance",
            "artifacts",
            "costmodel",
            "devices",
            "engine",
            "engines",
            "export",
            "external",
        }
        | {"loadtest", "models", "planner"}
        | {"policies", "profiler", "progress", "scheduler", "simulator", "validation"}
    ),
    # What pytest loads: it uses the library as a user does, and nothing uses it.
    "pytest_plugin": frozenset({"artifacts", "files", "progress", "reports", "api", "pytest", "pytest_benchmark"}),
    "root": frozenset({"timing", "artifacts", "engine", "planner", "reports", "api", "version"}),
    # These two may import every room that stands before them, too, but root.
    "cli": frozenset({"typer", "rich"}),
    "studies": frozenset({"joblib", "matplotlib", "numpy", "pydantic", "scipy", "simpy", "typer"}),
    "cli.study": frozenset({"cli", "studies", "typer"}),
    "cli.app": frozenset({"cli", "cli.study", "engine.process", "files", "version", "typer"}),
    "__main__": frozenset({"cli", "cli.app"}),
}
_TOP = ("cli", "studies")


def allowed_in(room: str) -> frozenset[str]:
    """All that modules of a room may import."""
    order = list(ROOMS)
    before = order[: order.index(room)] if room in _TOP else []
    return ROOMS[room] | {room, "errors"} | {*before} - {"root"}


# Finer than rooms: modules, and what they never import.
NEVERS = (
    ("swiftspec.cli", ("swiftspec.engine.launcher",)),  # it runs plans as everyone does: with an Engine
    ("swiftspec.engine.driver", ("swiftspec.engine.channel",)),  # it knows a Protocol
    ("swiftspec.server", ("swiftspec.engine.launcher", "swiftspec.engine.dispatcher", "swiftspec.engine.running")),
    ("swiftspec.engine.model.gpu", ("swiftspec.engine.model.cpu",)),
    ("swiftspec.engine.model.weights.loader", ("swiftspec.engine.parallel", "torch.distributed")),
    ("swiftspec.engine.parallel", ("swiftspec.engine.driver",)),
)

# Modules, and who alone imports them: the studies, the one predictor of loads, and what studies serve with besides.
_UNDER_LOAD, _PUBLISHED = "swiftspec.planner.under_load", "swiftspec.validation.published"
_SERVER_MODEL = "swiftspec.advise.model"
ALONE = (
    ("swiftspec.studies", ("swiftspec.studies", "swiftspec.cli.study")),
    ("swiftspec.simulator.load", (_UNDER_LOAD,)),
    ("swiftspec.simulator.serving", ("swiftspec.simulator", "swiftspec.studies")),
    ("swiftspec.planner.under_load.arrays", (_UNDER_LOAD, _PUBLISHED, _SERVER_MODEL)),
    ("swiftspec.planner.under_load.own_engine", (_UNDER_LOAD,)),
    # Controls weigh costs of steps; nobody makes a speed of them.
    (
        "swiftspec.timing.step_costs",
        (
            "swiftspec.artifacts",
            "swiftspec.scheduler",
            "swiftspec.simulator.setup",
            "swiftspec.studies.adaserve",
        ),
    ),
)

# Methods, and who alone calls them: what a further request adds to a step, without which nobody has a load's speed.
ALONE_CALL: Mapping[str, tuple[str, ...]] = {
    "further_sequences": (_UNDER_LOAD, "swiftspec.simulator.latency", "swiftspec.timing.step_costs"),
}

# Modules that write files by themselves; inflate writes a folder that appears whole, and a cache is no output. Another
# engine's server writes its log.
WRITERS = (
    "swiftspec.files",
    "swiftspec.engine.model.weights.inflate",
    "swiftspec.external.server",
    "swiftspec.kernels.cpu_cache",
)
# Modules that read files by themselves: what comes with the package is believed.
SHIPPED = (
    "swiftspec.studies.backtest.systems",
    "swiftspec.costmodel.published",
    "swiftspec.devices.accelerators",
    "swiftspec.costmodel.constants",
    "swiftspec.engines.constants",
    "swiftspec.models.published",
    "swiftspec.acceptance.proxy_pairs",
    "swiftspec.acceptance.records",
)
