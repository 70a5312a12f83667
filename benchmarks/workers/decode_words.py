"""A trained model of ours decoding words, text in and text out: decode_words.py MODEL COUNT BEAM."""

from __future__ import annotations

import sys

from files import WORDS, read_columns
from our_runs import trained
from timed import serve_rate

import unrolled
from unrolled.training import matrix_mode, probe_matrix_mode


def main() -> None:
    """Serve."""
    name, count, beam = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    model = unrolled.load(trained(name))
    words = read_columns(WORDS)[0][:count]

    def work() -> int:
        return len(model.predict(words, beam=beam))

    with matrix_mode(probe_matrix_mode()):
        serve_rate(work)


main()
