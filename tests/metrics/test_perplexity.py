from __future__ import annotations

import math

import pytest

from unrolled.errors import DataError
from unrolled.metrics import bits_per_unit, perplexity


def test_values():
    assert perplexity(6 * math.log(8.0), 6) == pytest.approx(8.0)
    assert bits_per_unit(6 * math.log(8.0), 9) == pytest.approx(2.0)
    assert perplexity(0.0, 3) == 1.0
    assert perplexity(1e6, 1) == math.inf


@pytest.mark.parametrize(("measure", "what"), [(perplexity, "labels"), (bits_per_unit, "characters")])
def test_nothing_is_an_error_and_not_nan(measure, what):
    with pytest.raises(DataError, match=rf"^no {what} to score$"):
        measure(0.0, 0)
