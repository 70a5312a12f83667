"""Sizes that programs of several environments share."""

WIDTH = 256
"""Embeddings, states and model."""
D_FF, LAYERS, HEADS = 1024, 4, 4
BATCH = 64
"""Words of a training step."""
DROPOUT = 0.2
"""Of recurrent models."""
STEPS = 400
"""Training of the models that decode words."""
SYMBOLS, LENGTH = 60, 8
"""Vocabulary, and symbols in and out, of decoders with random weights."""
TEXT_TOKENS = 120
"""Symbols that a language model writes: they fit its window of 128."""
