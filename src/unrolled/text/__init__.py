"""Files to pairs, pairs to symbols, symbols to batches; knows no framework.

`read_pairs` and `read_parallel` are the only readers of data files, `Codec` the only place where text and ids meet, and
`Batch` what a model is trained on.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
