"""The command ``rcgp``, and ``python -m rcgp``: the entrance to :mod:`rcgp.cli`, whose libraries are optional."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; without its libraries, say which extra to install."""
    try:
        from rcgp.cli import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("rcgp"):
            raise
        sys.exit(f'rcgp: the command line needs {error.name}, which is missing; pip install "rcgp[cli]" brings it')
    sys.exit(run())


if __name__ == "__main__":
    main()
