"""Trained runs at work: load, predict, score, evaluate, compare; with PyTorch or, where it is not installed, NumPy.

Answering one word needs little of this; each name is fetched from its module when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
