"""Experiments and measurements around swiftspec. The package needs none of them, and they are not in its wheel."""
