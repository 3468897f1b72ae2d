"""Closed forms of chains of blocks, against which the simulation is tested."""

from swiftspec.errors import FieldError


def md1_wait_s(rate: float, service_s: float) -> float:
    """Mean wait before a server of fixed time under Poisson arrivals, M/D/1: rho S / (2 (1 - rho)).

    ValueError unless 0 <= rate x service_s < 1.
    """
    load = rate * service_s
    if not 0 <= load < 1:
        raise FieldError("rate", f"{rate:g}, a load of {load:g}", "expected at least 0 and below 1")
    return load * service_s / (2 * (1 - load))


def surrogate_gain_s(accuracy: float, *, block_s: float, cost_share: float, behind_s: float) -> float:
    """Mean seconds that a surrogate saves a token without contention: saved hop less expected rerun.

    Parameters
    ----------
    accuracy : float
        Probability that what was computed with its output is kept.
    block_s : float
        Time of the block that it stands in for.
    cost_share : float
        Its time over the block's.
    behind_s : float
        Time of the one block behind. A step that has begun is not cut off, so that a rerun waits for it.
    """
    saved_s = min(behind_s, (1 - cost_share) * block_s)
    return saved_s - (1 - accuracy) * behind_s


def break_even_accuracy(*, block_s: float, cost_share: float, behind_s: float) -> float:
    """Accuracy at which the saved hop time equals the expected rerun; below it a surrogate costs time.

    0 if the block behind has ended when the real output comes: then a rerun costs nothing that was saved.
    """
    return 1 - min(behind_s, (1 - cost_share) * block_s) / behind_s
