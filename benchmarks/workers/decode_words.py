"""A trained model of ours decoding words, text in and text out: decode_words.py MODEL COUNT BEAM ENGINE.

How long its answers are goes to standard error: decoders are compared fairly where both write about as much. So does,
of 1,000 words, how many the `bfloat16` engine answers as the other one does.
"""

from __future__ import annotations

import sys

from files import WORDS, read_columns
from our_runs import trained
from timed import serve_rate

import unrolled
from unrolled.commands import keep_memory
from unrolled.commands.products import fast_products


def main() -> None:
    """Serve."""
    keep_memory()
    name, count, beam, engine = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    model = unrolled.load(trained(name), engine=engine)
    words = read_columns(WORDS)[0][:count]

    def work() -> int:
        return len(model.predict(words, beam=beam))

    lengths = [len(answer.split()) for answer in model.predict(words[:100], beam=1)]
    print(f"{name} of unrolled, greedy: {sum(lengths) / len(lengths):.1f} symbols a word", file=sys.stderr)
    if engine == "bfloat16":
        exact = unrolled.load(trained(name))
        answers = zip(*(one.predict(words[:1000], beam=beam) for one in (model, exact)), strict=True)
        print(f"{name} in bfloat16, beam {beam}: {sum(a == b for a, b in answers)} answers as exact", file=sys.stderr)
    with fast_products(engine):
        serve_rate(work)


main()
