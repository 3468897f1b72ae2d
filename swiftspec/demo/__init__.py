"""The bundled model pair, and how large the demo makes its target; `tools/demo_training` trains it."""

# Deep and narrow: a forward's time depends on layers more than on weights. So, as on accelerators, a second device
# hardly speeds up a single row, and eight rows cost little more than one.
DEMO_INFLATION = "layers=48"
