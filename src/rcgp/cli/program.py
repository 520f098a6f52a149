"""The program: arguments in, an exit code out. Bad input is one sentence on standard error and exit code 2."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import typer

from rcgp.cli.app import app

__all__ = ["run"]

_BAD_INPUT, _INTERRUPTED = 2, 130

# Typer gives a name to one of its errors of usage only, and their class is its parent.
_UsageError: Any = typer.BadParameter.__base__


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code. What can go wrong with input is one sentence, not a traceback."""
    command = typer.main.get_command(app)
    given = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        # Not command.main, which has its own ideas of how to end.
        with command.make_context("rcgp", list(given)) as context:
            command.invoke(context)
        sys.stdout.flush()
    except typer.Exit as done:
        return int(done.exit_code)
    except _UsageError as error:
        said = error.format_message().removeprefix("Value error, ").rstrip(".").replace(": Value error,", ":")
        return _fail(f"{said}; 'rcgp {_command_of(given)}--help' says more")
    except (KeyboardInterrupt, typer.Abort):
        kept = _command_of(given) == "reproduce "
        left = "finished runs are kept, and the same command goes on from there" if kept else "nothing was written"
        return _fail(f"interrupted; {left}", _INTERRUPTED)
    except BrokenPipeError:  # whoever read our output has enough
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        return _fail("there is not enough memory for a table of this size")
    except ModuleNotFoundError as error:
        if error.name == "rcgp_paper":
            return _fail("'rcgp reproduce' needs rcgp-paper; pip install \"rcgp[paper]\" brings it")
        return _fail(f'{error.name} is missing; pip install "rcgp[demo]" brings everything that the commands use')
    except OSError as error:
        return _fail(f"{error.filename or 'standard output'}: {error.strerror or error}")
    except (ValueError, ArithmeticError) as error:  # a matrix that is not positive definite is an ArithmeticError
        return _fail(" ".join(str(error).split()) or type(error).__name__)
    return 0


def _command_of(arguments: Sequence[str]) -> str:
    """The command that was given, with a space behind it, if it was one."""
    known = [
        argument
        for argument in arguments[:1]
        if argument in ("fit", "predict", "outliers", "report", "clean", "optimise", "reproduce", "demo")
    ]
    return f"{known[0]} " if known else ""


def _fail(sentence: str, code: int = _BAD_INPUT) -> int:
    # Bytes that are not text, from a file name say, must not fail here again.
    safe = sentence.encode("utf-8", "backslashreplace").decode()
    print(f"rcgp: {safe}", file=sys.stderr)
    return code
