"""The slots of `start_engine`'s processes: a target and a draft."""

from swiftspec.engine.process.protocol import WorkerSpec
from swiftspec.policies.effects import Role

TARGET, DRAFT = 0, 1  # slots
SLOTS = (WorkerSpec(Role.TARGET, 0, 0, 1, (0,)), WorkerSpec(Role.DRAFT, 0, 0, 1, (1,)))
