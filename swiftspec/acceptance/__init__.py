"""Acceptance model of pairs that cannot be run, fitted to published figures."""

from swiftspec.acceptance.fitting import Fit
from swiftspec.acceptance.given import GivenAcceptance
from swiftspec.acceptance.model import PRIOR, AcceptanceModel, rank_acceptance, tree_acceptance
from swiftspec.acceptance.proxy_pairs import acceptance_for, dataset_names
from swiftspec.acceptance.records import AcceptanceRecord, published_records
from swiftspec.acceptance.synthesis import synthesise, synthesise_positions
from swiftspec.acceptance.texts import TextClass
from swiftspec.acceptance.usual import usual_rates

__all__ = [
    "PRIOR",
    "AcceptanceModel",
    "AcceptanceRecord",
    "Fit",
    "GivenAcceptance",
    "TextClass",
    "acceptance_for",
    "dataset_names",
    "published_records",
    "rank_acceptance",
    "synthesise",
    "synthesise_positions",
    "tree_acceptance",
    "usual_rates",
]
