"""The command line: parses, calls, prints; holds no logic."""

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    from unrolled.commands.app import app

    app()
