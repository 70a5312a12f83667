"""A trained model of ours decoding words, text in and text out: decode_words.py MODEL COUNT BEAM.

How long its answers are goes to standard error: decoders are compared fairly where both write about as much.
"""

from __future__ import annotations

import sys

from files import WORDS, read_columns
from our_runs import trained
from timed import serve_rate

import unrolled
from unrolled.commands import keep_memory
from unrolled.training import matrix_mode, probe_matrix_mode


def main() -> None:
    """Serve."""
    keep_memory()
    name, count, beam = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    model = unrolled.load(trained(name))
    words = read_columns(WORDS)[0][:count]

    def work() -> int:
        return len(model.predict(words, beam=beam))

    lengths = [len(answer.split()) for answer in model.predict(words[:100], beam=1)]
    print(f"{name} of unrolled, greedy: {sum(lengths) / len(lengths):.1f} symbols a word", file=sys.stderr)
    with matrix_mode(probe_matrix_mode()):
        serve_rate(work)


main()
