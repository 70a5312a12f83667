"""`unrolled demo`: a pronunciation model from a dictionary, in minutes."""


def demo() -> None:
    """Train."""
