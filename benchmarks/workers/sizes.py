"""The work that all decoders do."""

SYMBOLS, LENGTH = 60, 8
D_MODEL, D_FF, LAYERS, HEADS = 256, 1024, 4, 4
COUNT = {1: 2048, 5: 512}
"""Words by beam."""
