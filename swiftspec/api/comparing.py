"""The stage that compares kinds of drafts."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from swiftspec.artifacts.kinds import KindComparison
from swiftspec.progress import Stages, silent

if TYPE_CHECKING:
    from swiftspec.planner.deployment import Deployment

__all__ = ["compare_kinds"]


def compare_kinds(
    target: str,
    *,
    deployment: "Deployment",
    drafts: Sequence[str] | Mapping[str, str | None] = (),
    clients: Sequence[int] = (1, 4, 16, 64),
    trace: Path | str | None = None,
    dataset: str | None = None,
    seed: int = 0,
    num_jobs: int = -1,
    price_per_hour: float | None = None,
    stages: Stages = silent,
) -> KindComparison:
    """Lay kinds of drafts side by side on one target, on all devices of a deployment, at several loads.

    None, suffix decoding, draft models on the target's devices and on their own, parallel drafts, heads and block
    drafters, each in the shape that is fastest at the load.

    Parameters
    ----------
    target : str
        Name or directory.
    deployment : Deployment
        Devices, formats of weights, prompt tokens.
    drafts : sequence of str, or mapping from str to str, optional
        As of a plan: names, directories, `pard:NAME`, or heads such as `eagle3`. A mapping gives acceptance rates by
        draft, as `swiftspec.plan` takes them; None is the published one. `suffix` with tokens per round, as `1.8@5`, is
        suffix decoding with that acceptance. Without, the smallest draft model, the same as a parallel draft, and every
        kind of head.
    clients : sequence of int
        Loads: requests that decode together.
    trace : path, optional
        A recorded trace whose text suffix decoding drafts from; a bundled one if not given.
    dataset : str, optional
        Acceptance on this data set or class of text.
    num_jobs : int
        Processes; 1 stays in this one, -1 starts one per core.
    price_per_hour : float, optional
        Of one device, in any currency: a million output tokens are priced.

    Raises
    ------
    ValueError
        If a name is unknown, a draft does not fit the target, or the target does not fit on the devices.

    Examples
    --------
    >>> h100 = swiftspec.Deployment(device="h100", num_devices=8, quant="fp8")
    >>> compared = compare_kinds("llama-3.3-70b", deployment=h100)
    >>> kind, point = compared.ranked(clients=16)[0]
    """
    from swiftspec.acceptance import GivenAcceptance
    from swiftspec.planner.drafts.compare import compare_kinds as lay_out
    from swiftspec.planner.drafts.named import DraftInput, asked_drafts

    rates = dict(drafts) if isinstance(drafts, Mapping) else dict.fromkeys(drafts)
    asked = [
        DraftInput(draft=name, acceptance=GivenAcceptance.parse(text, field="acceptance") if text else None)
        for name, text in zip_longest(asked_drafts(target, list(rates)), rates.values())
    ]
    with stages("kinds") as progress:
        compared = lay_out(
            deployment,
            target=target,
            drafts=asked,
            clients=clients,
            text=None if trace is None else Path(trace),
            dataset=dataset,
            seed=seed,
            num_jobs=num_jobs,
            price_per_hour=price_per_hour,
            progress=progress,
        )
    return compared.model_copy(update={"host_s": deployment.host_s})
