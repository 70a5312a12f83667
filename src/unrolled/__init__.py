"""Sequence models, unrolled: train them on your own pairs or text, decode, and look inside.

::

    import unrolled

    unrolled.train("words.tsv", preset="g2p", out="runs/words")
    model = unrolled.load("runs/words")
    model.predict(["hello"])

Importing this package loads nothing heavy; each name is fetched from its room when it is first used.
"""

import lazy_loader

from unrolled.version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
