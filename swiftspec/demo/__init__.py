"""The bundled model pair: how it was trained, and how large the demo makes its target."""

__all__ = ["DEMO_INFLATION"]

# Deep and narrow: a forward's time is spent per layer more than per weight, so that, as on accelerators, a second
# device hardly speeds a single row up, and eight rows cost little more than one.
DEMO_INFLATION = "layers=48"
