"""Quantize a model: to block formats in a GGUF file, or to int8 with a scale per output channel in a folder."""

from __future__ import annotations

import argparse
from statistics import mean
from typing import Any

from labcore.cli.convert import output_path, write
from labcore.core.errors import InvalidCheckpoint
from labcore.lab.tables import Table
from labcore.loaders.checkpoint import Checkpoint
from labcore.loaders.load import load_checkpoint
from labcore.loaders.writing import float32
from labcore.quant.error import relative_error
from labcore.quant.gguf_blocks import FORMATS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a model's name, a GGUF file, or a folder with safetensors")
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help="NAME.gguf for a block format, a folder for int8")
    formats = [name.lower() for name in FORMATS]
    parser.add_argument("--to", required=True, choices=[*formats, "int8"], help="format of the matrices")


def run(args: argparse.Namespace) -> dict[str, Any]:
    output = output_path(args.output)
    if output.name.lower().endswith(".gguf") == (args.to == "int8"):
        expected = "the name of a folder" if args.to == "int8" else "a name that ends in .gguf"
        raise InvalidCheckpoint(f"{output}: expected {expected} for {args.to}")
    before = load_checkpoint(args.model)
    write(before, output, "I8" if args.to == "int8" else args.to.upper())
    after = load_checkpoint(output.absolute())  # a folder may have the name of a model
    sizes, errors = [_weight_bytes(checkpoint) for checkpoint in (before, after)], _errors(before, after)
    rows = [[kind, f"{mean(found):.2%}", f"{max(found):.2%}"] for kind, found in errors.items()]
    print(f"{output}: {before.config.name} in {args.to}, weights of {sizes[0]:,} bytes now {sizes[1]:,}")
    print(Table(["matrices", "mean error", "worst"], rows))
    kinds = {kind: {"mean": mean(found), "worst": max(found)} for kind, found in errors.items()}
    return {"output": str(output), "to": args.to, "bytes_before": sizes[0], "bytes_after": sizes[1], "relative_error": kinds}


def _weight_bytes(checkpoint: Checkpoint) -> int:
    return sum(tensor.nbytes for tensor in checkpoint.tensors.values())


def _errors(before: Checkpoint, after: Checkpoint) -> dict[str, list[float]]:
    """Relative error of each matrix, by kind: q_proj, embed_tokens ..."""
    errors: dict[str, list[float]] = {}
    for name, shape in before.shapes.items():
        if len(shape) == 2:
            pair = (float32(checkpoint.tensors[name]) for checkpoint in (before, after))
            errors.setdefault(name.split(".")[-2], []).append(relative_error(*pair))
    return errors
