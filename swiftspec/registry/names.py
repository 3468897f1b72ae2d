"""What to say when a name is not in a table."""

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["unknown"]


def unknown(field: str, name: str, known: Iterable[str]) -> ValueError:
    """Names the field, the value, the closest names there are, and all of them where none is close."""
    known = list(known)
    close = get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    expected = f"did you mean {' or '.join(close)}?" if close else f"expected one of {', '.join(known)}"
    return ValueError(f"{field} is {name!r}; {expected}")
