"""Measurements of others, or one's own from elsewhere, against predictions: files of loads and of speeds.

`DATA` is the folder of the published ones, to which constants of kernels and of engines were fitted.
"""

from pathlib import Path
from typing import Final

DATA: Final = Path(__file__).with_name("data")
