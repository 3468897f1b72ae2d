"""Expert coverage of sparse models: the share of the experts whose weights a forward has to read."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertCoverage:
    """Experts of every layer, and how many of them each token is sent to.

    Tokens choose independently and evenly, so that T of them reach the share 1 - (1 - active / experts)^T.

    Parameters
    ----------
    experts, active : int

    Raises
    ------
    ValueError
        Unless 1 <= active <= experts.
    """

    experts: int
    active: int

    def __post_init__(self) -> None:
        if self.experts < 1:
            raise ValueError(f"experts is {self.experts}; expected at least 1")
        if not 1 <= self.active <= self.experts:
            raise ValueError(f"active is {self.active}; expected 1 to {self.experts}, the number of experts")

    def share(self, num_tokens: float) -> float:
        """Share of the experts that a forward over so many tokens reads, in the mean."""
        return float(1 - (1 - self.active / self.experts) ** num_tokens)
