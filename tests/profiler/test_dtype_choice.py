from collections.abc import Mapping, Sequence

import pytest

from swiftspec.files.document import ModelRef
from swiftspec.profiler import dtype_choice
from swiftspec.profiler.pair import resolve

EXACT_S = 1.0


@pytest.fixture
def bfloat16_takes(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Seconds of a forward in bfloat16, by model; in float32 it takes `EXACT_S`."""
    seconds: dict[str, float] = {}

    def forward_seconds(reference: ModelRef, row_counts: Sequence[int]) -> Mapping[int, Sequence[float]]:
        assert reference.dtype in ("float32", "bfloat16")
        each_s = seconds[reference.model] if reference.dtype == "bfloat16" else EXACT_S
        return dict.fromkeys(row_counts, (2 * each_s, each_s))

    monkeypatch.setattr(dtype_choice, "forward_seconds", forward_seconds)
    return seconds


@pytest.mark.parametrize(
    ("dtype", "target_s", "draft_s", "expected"),
    [
        ("auto", 0.5, 2.0, ("bfloat16", "float32")),
        ("auto", 2.0, 0.5, ("float32", "bfloat16")),
        ("auto", 0.97, 0.97, ("float32", "float32")),  # not worth rounding for
        ("auto,bf16", 2.0, 2.0, ("float32", "bfloat16")),
        ("int8,auto", 0.5, 0.5, ("int8", "bfloat16")),
        ("fp32,bf16", 0.5, 2.0, ("float32", "bfloat16")),
        ("bf16", 2.0, 2.0, ("bfloat16", "bfloat16")),
    ],
)
def test_each_model_has_its_own(
    dtype: str, target_s: float, draft_s: float, expected: tuple[str, str], bfloat16_takes: dict[str, float]
) -> None:
    bfloat16_takes |= {"demo/target": target_s, "demo/draft": draft_s}
    pair = resolve(target="demo/target", draft="demo/draft", inflate="layers=10", dtype=dtype)
    assert (pair.target.dtype, pair.draft.dtype) == expected
    assert (pair.target.inflate, pair.draft.inflate) == ("layers=10", None)


def test_only_quantised_weights_are_called_lossy() -> None:
    assert str(ModelRef(model="m", dtype="int8")) == "m in int8 (lossy)"
    assert str(ModelRef(model="m", dtype="float32")) == "m in float32"
