"""Dispatch of `labcore COMMAND`. Standard library only, and starts on Python 3.8: a command is imported when it is asked for.

A command module has `add_arguments(parser)` and `run(args) -> document`: the document (a dict) is what `--json` prints,
exactly one on stdout; without `--json` the command has printed its own text. Everything else goes to stderr. A document that
holds an `exit_code` sets it. A command that runs on sets `JSON = False` and returns its exit code.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn, TextIO

COMMANDS = {
    "up": "set up the laboratory and start it: JupyterLab and the rendered book",
    "verify": "set up the laboratory, then lint, layers, types, book, tests and notebooks",
    "generate": "generate text from prompts",
    "chat": "talk with a model",
    "trace": "run prompts and record every step of the engine",
    "replay": "print a recorded run, or run it again and compare every decision",
    "info": "versions, backends and why, models, instruction set",
    "doctor": "what this machine has, what is missing, and how to get it",
    "convert": "convert a model between GGUF and safetensors",
    "quantize": "quantize a model: Q8_0, Q4_0 or Q4_1 as GGUF, int8 as a folder",
    "soak": "an engine under anything that may happen to it, all books checked after every step",
    "kernels": "every operator on every backend: error, rate, share of this machine's ceilings",
    "spec": "what guessing ahead brings: acceptance, tokens a pass, speed-up; or the law that it keeps",
    "bench": "measure the engine: beside its floor, beside other engines, its quality",
    "fetch": "fetch a model into the cache and verify it",
    "notebooks": "execute the book's notebooks in place",
}


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = ["usage: labcore COMMAND [options]", "", "The Inference Engine Laboratory.", "", "commands:"]
    lines += ["  %-*s  %s" % (width, name, text) for name, text in COMMANDS.items()]
    return "\n".join([*lines, "", "labcore COMMAND --help tells a command's options."])


def _fail(message: str) -> int:
    print("labcore: %s" % message, file=sys.stderr)
    return 2


class _BadArguments(Exception):
    """What argparse has to say, in one line."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:  # argparse would print its usage too, and leave
        raise _BadArguments(message)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code (2 = bad input, one line on stderr)."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help"):
        print(_help())
        return 0 if argv else 2
    if argv[0] == "--version":
        from labcore import __version__

        print("labcore", __version__)
        return 0
    name = argv.pop(0)
    if name not in COMMANDS:
        return _fail("unknown command %r; known: %s" % (name, ", ".join(COMMANDS)))
    if sys.version_info < (3, 11):
        this = "%d.%d" % sys.version_info[:2]
        return _fail("needs Python 3.11 or newer; this is %s. Install it and run `python3.11 -m labcore %s`" % (this, name))
    try:
        command = importlib.import_module("labcore.cli." + name)
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package == "labcore":
            raise
        cure = "run `python3 -m labcore up` once, then use .venv/bin/labcore"
        return _fail("%s needs the package %r, which this Python lacks: %s" % (name, package, cure))
    parser = _Parser(prog="labcore " + name, description=command.__doc__)
    command.add_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    if getattr(command, "JSON", True):
        parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")
    try:
        args = parser.parse_args(argv)
    except _BadArguments as error:
        return _fail("%s (`labcore %s --help` tells its options)" % (error, name))
    return _run(command, args)


def _silence(stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run(command: ModuleType, args: argparse.Namespace) -> int:
    from labcore.core.errors import LabError

    as_json = getattr(args, "json", False)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    stdout = sys.stdout
    if isinstance(stdout, io.TextIOWrapper):
        stdout.reconfigure(errors="replace")  # a terminal may lack a character; the run has not failed
    if as_json:
        sys.stdout = sys.stderr  # what a command prints for people is not for the reader of JSON
    try:
        result = command.run(args)
        if isinstance(result, int):
            return result
        if as_json:
            print(json.dumps(result, ensure_ascii=True, allow_nan=False), file=stdout)
        stdout.flush()
        return int(result.get("exit_code", 0))
    except LabError as error:
        if args.debug:
            raise
        return _fail(str(error))
    except MemoryError as error:
        if args.debug:
            raise
        return _fail("out of memory: %s" % error)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:
        _silence(stdout)  # the reader went away: nothing left to say
        return 1
    except OSError as error:
        if args.debug:
            raise
        _silence(stdout)  # a full disk, say: what is left to print would fail once more when Python ends
        return _fail(str(error))
    finally:
        sys.stdout = stdout
