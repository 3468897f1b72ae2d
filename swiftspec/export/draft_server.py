"""The command of a draft server, for an engine that asks one."""

from collections.abc import Iterator

from swiftspec.artifacts.plan import Plan
from swiftspec.devices import DEVICES
from swiftspec.export.nearest import Runnable
from swiftspec.policies.base import Value, drafts_elsewhere, shape_of
from swiftspec.policies.effects import Role

__all__ = ["ADDRESS", "draft_server_arguments"]

ADDRESS = "ipc:///tmp/swiftspec-draft"
_MOST_RUNNING = 64  # requests, whose caches a draft server allocates when it starts; all others decode plainly


def draft_server_arguments(
    plan: Plan, found: Runnable, *, draft: str, address: str, max_running: int | None = None
) -> tuple[str, ...]:
    """Words of the command; none for a policy whose draft the engine runs itself.

    draft: repository or directory. max_running: requests at once.
    """
    if not drafts_elsewhere(found.policy):
        return ()
    return tuple(_words(plan, found, draft, address, max_running))


def _words(plan: Plan, found: Runnable, draft: str, address: str, max_running: int | None) -> Iterator[str]:
    devices = plan.candidates[found.policy.name].groups[Role.DRAFT]
    device = plan.draft_device or plan.device
    cores = DEVICES[device].cores if device in DEVICES else len(devices) if device == "cpu" else 0
    if not cores:
        yield from ("env", f"CUDA_VISIBLE_DEVICES={devices[0]}")
    yield from ("swiftspec", "serve", "--role", "draft", "--draft", draft)
    yield from ("--policy", found.policy.name, "--address", address)
    if cores:
        yield from ("--devices", str(cores))
    settings = {name: _written(value) for name, value in shape_of(found.policy).items()}
    if max_running is not None:
        settings["max_running"] = str(min(max_running, _MOST_RUNNING))
    if plan.longest_request:
        settings["max_context"] = str(plan.longest_request)
    if not cores:
        settings["device"] = "cuda"
    yield from ("--set", ",".join(f"{name}={value}" for name, value in settings.items()))


def _written(value: Value) -> str:
    return ":".join(map(str, value)) if isinstance(value, tuple) else str(value)
