"""Training of the bundled models: what `swiftspec/demo` holds, made again from CPython's standard library."""

from pathlib import Path
from typing import Final

import swiftspec

BUNDLED: Final = Path(swiftspec.__file__).with_name("demo")
