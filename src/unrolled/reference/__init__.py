"""The NumPy engine: every layer from first principles, with its own backward pass, and prediction without PyTorch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
