"""Other simulations of a plan: what was explored, and the choice under other assumptions."""

from typing import Annotated

from pydantic import Field

from swiftspec.files.document import Facts

__all__ = ["Explored", "Sensitivity"]

_Count = Annotated[int, Field(ge=0)]
_Speed = Annotated[float, Field(ge=0)]


class Explored(Facts):
    """The best simulated option of a policy on one split: a cell of the heat map.

    tokens_per_s: from request to last token. tpot_s: mean over requests. For options that did not reach the last stage,
    both are early-stage results, scaled by how the policy's finalist changed between that stage and the last:
    `estimated`. num_options: simulated on this split.
    """

    policy: str
    split: str
    num_devices: int = Field(ge=1)
    tokens_per_s: float = Field(gt=0)
    tpot_s: float = Field(ge=0)
    num_options: _Count
    estimated: bool = False


class Sensitivity(Facts):
    """Effect of another assumption on the choice.

    change: `all-reduce +20 %`. tokens_per_s: of the chosen candidate; its prediction is scaled by the ratio of two
    simulations on the same few prompts, as changed and as planned. best, best_tokens_per_s: the fastest of the chosen
    and its rivals after the change, computed likewise; rivals are options that might have been chosen. changes_choice:
    whether that is another option, by more than simplicity may cost.
    """

    change: str
    tokens_per_s: _Speed
    best: str
    best_tokens_per_s: _Speed
    changes_choice: bool
