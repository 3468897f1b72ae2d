from xml.etree import ElementTree

import pytest

from swiftspec.reports.html.markup import Markup, element, join


def test_text_is_escaped_and_markup_is_not() -> None:
    inner = element("b", "<script>alert('x')</script> & more")
    assert inner == "<b>&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; more</b>"
    assert element("p", inner, "<br>") == f"<p>{inner}&lt;br&gt;</p>"


def test_a_markups_slice_is_text_again() -> None:
    assert join([Markup("<b></b>")[:3]]) == "&lt;b&gt;"


def test_attributes_are_escaped_and_named_as_in_html() -> None:
    made = element("td", class_='a"><b', aria_label="x & y", scope=None, name="n")
    assert made == '<td class="a&quot;&gt;&lt;b" aria-label="x &amp; y" name="n"></td>'


@pytest.mark.parametrize(("number", "text"), [(0, "0"), (10, "10"), (0.5, "0.5"), (1 / 3, "0.3333"), (-8.0, "-8")])
def test_numbers_have_at_most_four_decimals(number: float, text: str) -> None:
    assert element("rect", x=number) == f'<rect x="{text}"></rect>'


def test_elements_without_content_close_themselves() -> None:
    page = element("head", element("meta", charset="utf-8"), element("title"))
    assert page == '<head><meta charset="utf-8"/><title></title></head>'
    assert ElementTree.fromstring(page).tag == "head"
