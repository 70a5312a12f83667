"""`unrolled presets`: the named settings."""

from __future__ import annotations


def presets() -> None:
    """List the presets, one a line."""
    from unrolled.presets import describe

    descriptions = describe()
    width = max(map(len, descriptions))
    for name, description in descriptions.items():
        print(f"{name:<{width}}  {description}")
