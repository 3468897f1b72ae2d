import pytest

from swiftspec.policies.effects import Role
from swiftspec.reports.figures import forward_parts, heat_map
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.timeline import Phase
from tests.builders import machine_profile
from tests.reports.figures.samples import forwards
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


def test_parts_of_a_forward_add_up_to_it() -> None:
    (axes,) = forward_parts(forwards()).axes
    for number, latency in enumerate(forwards().values()):
        widths = [list(container)[number].get_width() for container in axes.containers]
        assert sum(widths) == pytest.approx(latency.mean_s * 1e3)
    assert "qkv (published)" in {container.get_label() for container in axes.containers}


def test_measured_forwards_have_no_parts_to_show() -> None:
    step = machine_profile().step(StepKey(Role.TARGET, Phase.VERIFY, degree=1, rows=1, context=16))
    with pytest.raises(ValueError, match="'verify', which is not composed"):
        forward_parts({"verify": step})
