"""Writing text with a key-value cache, one text at a time: `unrolled generate` with the preset gpt-tiny."""

from __future__ import annotations

from our_runs import trained
from sizes import TEXT_TOKENS
from timed import serve_rate

import unrolled
from unrolled.commands import keep_memory


def main() -> None:
    """Serve."""
    keep_memory()
    model = unrolled.load(trained("gpt-tiny"))
    serve_rate(lambda: len(model.generate("a", max_tokens=TEXT_TOKENS)))


main()
