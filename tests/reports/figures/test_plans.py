import pytest

from swiftspec.reports.figures import heat_map
from tests.reports.html.samples import CHOSEN_TOKENS_PER_S, rich_plan

pytestmark = pytest.mark.extra("plots")


def test_heat_map_has_a_panel_per_kind_of_split_and_frames_the_choice() -> None:
    together, apart = heat_map(rich_plan()).axes
    assert [label.get_text() for label in together.get_yticklabels()] == ["serial_tree", "autoregressive"]
    assert [label.get_text() for label in together.get_xticklabels()] == [str(count) for count in range(1, 9)]
    assert not together.patches
    (frame,) = apart.patches
    corner = frame.get_window_extent()
    column = [label.get_text() for label in apart.get_xticklabels()].index("4+4")
    assert apart.transData.inverted().transform((corner.x0, corner.y0))[0] == pytest.approx(column - 0.5)
    assert f"{CHOSEN_TOKENS_PER_S:.0f}" in {text.get_text() for text in apart.texts if text.get_fontweight() == "bold"}
