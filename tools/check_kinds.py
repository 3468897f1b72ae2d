"""Rounds priced for many clients against simulations of these clients: what `swiftspec kinds` rests on.

    python -m tools.check_kinds --target llama-3.3-70b --device h100 --devices 8 --quant fp8

For a separate draft, a head and a block drafter, chains of several lengths: the errors of a round's time, and of a
client's speed, by the number of clients. The speed's error has the choice of rounds in it.
"""

import argparse
import sys
from statistics import median

from swiftspec.planner.deployment import Deployment, PlannedModel, planned_pair
from swiftspec.planner.for_device import prepare
from swiftspec.planner.kinds.clients import decode_together
from swiftspec.planner.kinds.named import kinds_of
from swiftspec.planner.kinds.shapes import MOST_ROWS, Shapes
from swiftspec.planner.space import Option

_CLIENTS = (1, 4, 16, 64)
_LENGTHS = (3, 6)


def shapes_of(draft: str, models: tuple[PlannedModel, PlannedModel], deployment: Deployment) -> Shapes:
    """Shapes of a draft that shares the target's devices."""
    inputs = prepare(deployment, target=models[0], draft=models[1])
    kind = kinds_of(draft, models[1].kind, num_devices=deployment.num_devices)[0]
    return Shapes(kind=kind, deployment=deployment, models=models, inputs=inputs, seed=0)


def errors_of(shapes: Shapes, option: Option, clients: int) -> tuple[float, float]:
    """Relative errors of priced rounds against simulated clients: of a round's time, and of a client's speed."""
    point = shapes.point(option, clients)
    served = decode_together(
        option,
        shapes.inputs.profile.latencies,
        shapes.inputs.trace,
        clients,
        context=shapes.mean_context,
        max_rows=MOST_ROWS,
    )
    simulated_s = served.tokens_per_round / served.tokens_per_s
    round_error = point.tokens_per_round / point.user_tokens_per_s / simulated_s - 1
    return round_error, point.user_tokens_per_s / served.tokens_per_s - 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--quant", default="bf16")
    parser.add_argument("--draft", action="append", help="default: llama-3.2-1b, eagle3, dspark")
    asked = parser.parse_args()
    deployment = Deployment(device=asked.device, num_devices=asked.devices, quant=asked.quant)
    errors: dict[int, list[tuple[float, float]]] = {clients: [] for clients in _CLIENTS}
    for draft in asked.draft or ("llama-3.2-1b", "eagle3", "dspark"):
        models = planned_pair(asked.target, draft)
        shapes = shapes_of(draft, models, deployment)
        for option in (each for each in shapes.chains if each.policy.target_rows - 1 in _LENGTHS):
            for clients in _CLIENTS:
                round_error, speed_error = errors_of(shapes, option, clients)
                errors[clients].append((round_error, speed_error))
                shape = option.policy
                print(f"{draft}, {shape}, {clients}: round {round_error:+.1%}, speed {speed_error:+.1%}")
    for clients, pairs in errors.items():
        for what, found in zip(("round", "speed"), zip(*pairs, strict=True), strict=True):
            sizes = [abs(error) for error in found]
            print(f"{clients} clients, {what}: median {median(sizes):.1%}, at most {max(sizes):.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
