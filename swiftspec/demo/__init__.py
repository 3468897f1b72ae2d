"""The bundled model pair: how it was trained, and how large the demo makes its target."""

__all__ = ["DEMO_INFLATION"]

DEMO_INFLATION = "layers=12,hidden=512"
