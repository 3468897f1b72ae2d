"""Elements of a page as strings, escaped by construction: a plain `str` is text, only `Markup` is markup.

The result is well-formed XML as well as HTML, so that a test can parse it with the standard library.
"""

from collections.abc import Iterable
from html import escape

_VOID = frozenset({"br", "col", "hr", "meta"})


class Markup(str):
    """A piece of a page, already escaped."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: str | float | None) -> Markup:
    """`<name attribute="value">children</name>`.

    children: text, which is escaped, or Markup, which is not. attributes: `class_` is `class`, `aria_label` is
    `aria-label`; None leaves an attribute out. Numbers have at most four decimals: a hundredth of a per mille of a
    chart's width.
    """
    opening = name + "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{opening}/>")
    return Markup(f"<{opening}>{join(children)}</{name}>")


def join(children: Iterable[str], separator: str = "") -> Markup:
    """Children side by side, text escaped."""
    return Markup(separator.join(child if isinstance(child, Markup) else escape(child) for child in children))


def _value(value: str | float) -> str:
    return escape(value) if isinstance(value, str) else f"{value:.4f}".rstrip("0").rstrip(".")
