"""Repetition of the fits of every published pair of models; a test compares the stored ones with these.

`python -m swiftspec.studies.backtest.fitting` writes swiftspec/acceptance/fitted.json.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import swiftspec.acceptance
from swiftspec.acceptance.fitting import Fit
from swiftspec.acceptance.model import AcceptanceModel
from swiftspec.acceptance.proxy_pairs import FittedPair
from swiftspec.acceptance.records import Quantity
from swiftspec.files.writing import write_output
from swiftspec.studies.backtest.figures import Chain, acceptance_of, fit_acceptance_model
from swiftspec.studies.backtest.static_trees import FORKED, forked_fit
from swiftspec.studies.backtest.table7 import DRAFT, TARGET, Reading, published_lengths, serial_fits

_CHAINS = {
    ("qwen3-32b", "qwen3-1.7b"): ("InstructCoder", "MT-Bench"),
    ("qwen3-32b", "qwen3-4b"): ("InstructCoder", "MT-Bench"),
    ("llama-3.3-70b", "llama-3.2-1b"): ("InstructCoder",),
}


def chains_of(target: str, draft: str, dataset: str) -> list[Chain]:
    """Published chains of a pair, shortest first."""
    vectors = [
        record.values
        for record in acceptance_of(target, draft, dataset)
        if record.quantity is Quantity.CUMULATIVE_ACCEPTANCE
    ]
    return [Chain(values=values) for values in sorted(vectors, key=len)]


def fitted_again() -> Iterator[FittedPair]:
    """Fits of every pair whose models are known by name, on every data set with figures."""
    for (target, draft), datasets in _CHAINS.items():
        for dataset in datasets:
            chains = chains_of(target, draft, dataset)
            longest = len(chains[-1].values)
            to = f"acceptance by position of chains of up to {longest} tokens (tomasruizt/vllm-scripts)"
            yield _fitted(target, draft, dataset, fit_acceptance_model(chains), to)
    for tree in FORKED:
        to = f"length of {tree.width} chains of {tree.length} tokens (Sequoia)"
        yield _fitted(tree.target, tree.draft, tree.dataset, forked_fit(tree), to)
    fits = serial_fits(Reading())
    for dataset in published_lengths("serial"):
        yield _fitted(TARGET, DRAFT, dataset, fits[dataset], "lengths of a serial tree of 8 rows (SwiftSpec, Table 7)")


def _fitted(target: str, draft: str, dataset: str, fit: Fit, to: str) -> FittedPair:
    rounded = AcceptanceModel(**{name: round(value, 3) for name, value in fit.acceptance_model.model_dump().items()})
    return FittedPair(
        target=target,
        draft=draft,
        dataset=dataset,
        acceptance_model=rounded,
        fitted=fit.fields,
        to=to,
        residual=round(fit.residual, 4),
    )


def _write() -> None:
    lines = ",\n".join(json.dumps(pair.model_dump()) for pair in fitted_again())
    write_output(Path(swiftspec.acceptance.__file__).with_name("fitted.json"), f"[\n{lines}\n]\n".encode())


if __name__ == "__main__":
    _write()
