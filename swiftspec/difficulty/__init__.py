"""Acceptance of pairs that cannot be run: how sure a draft is along a text, fitted to published figures."""

from swiftspec.difficulty.fit import Chain, Fit, Length, Observation, Ranks, fit_difficulty
from swiftspec.difficulty.given import GivenAcceptance
from swiftspec.difficulty.pairs import Acceptance, acceptance_for, dataset_names
from swiftspec.difficulty.process import PRIOR, Difficulty, rank_acceptance, tree_acceptance
from swiftspec.difficulty.synthesis import synthesise

__all__ = [
    "PRIOR",
    "Acceptance",
    "Chain",
    "Difficulty",
    "Fit",
    "GivenAcceptance",
    "Length",
    "Observation",
    "Ranks",
    "acceptance_for",
    "dataset_names",
    "fit_difficulty",
    "rank_acceptance",
    "synthesise",
    "tree_acceptance",
]
