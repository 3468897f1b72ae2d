"""Layouts of a model on the devices of a group: attention in data parallel or divided, experts by width or whole."""

import re
from dataclasses import dataclass

from swiftspec.errors import FieldError

_EXPECTED = (
    "expected such as tp8, dp8, dp2tp4 or dp8ep8: ranks, devices of each, and ep of all devices for whole experts"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceLayout:
    """Devices of a group in ranks: each rank has attention, dense networks and a cache of its own for its requests.

    dp: ranks. Requests are spread over them, and all ranks run every step together. tp: devices that divide the heads
    of one rank. ep: all devices of the group if each holds whole experts; 1 if every expert's width is divided over all
    of them.

    ValueError: for a number below 1, or experts that are whole on some of the devices only.
    """

    dp: int = 1
    tp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        if min(self.dp, self.tp, self.ep) < 1:
            raise FieldError("layout", self, "expected numbers of at least 1")
        if self.ep not in (1, self.num_devices):
            expected = f"expected ep{self.num_devices}, since experts are whole on all devices or divided over all"
            raise FieldError("layout", self, expected)

    @classmethod
    def parse(cls, text: str) -> "DeviceLayout":
        """From `dp2tp4ep8`, of which dp or tp has to be there. ValueError for anything else."""
        found = re.fullmatch(r"(?=dp|tp)(?:dp(\d{1,4}))?(?:tp(\d{1,4}))?(?:ep(\d{1,4}))?", text.strip().lower())
        if found is None:
            raise FieldError("layout", repr(text), _EXPECTED)
        dp, tp, ep = (int(number or 1) for number in found.groups())
        return cls(dp=dp, tp=tp, ep=ep)

    def __str__(self) -> str:
        """`dp2tp4`, `dp8ep8`."""
        ranks = f"dp{self.dp}" if self.dp != 1 else ""
        degree = f"tp{self.tp}" if self.tp != 1 or not ranks else ""
        return f"{ranks}{degree}{f'ep{self.ep}' if self.ep != 1 else ''}"

    @property
    def num_devices(self) -> int:
        return self.dp * self.tp

    @property
    def is_plain(self) -> bool:
        """Whether one rank divides everything by width, as dense models are divided."""
        return self.dp == self.ep == 1
