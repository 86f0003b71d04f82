"""Convert a model between GGUF and safetensors."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from labcore.core.errors import InvalidCheckpoint
from labcore.loaders.checkpoint import Checkpoint
from labcore.loaders.dense import STORED
from labcore.loaders.gguf_writer import write_gguf
from labcore.loaders.load import load_checkpoint
from labcore.loaders.safetensors_writer import write_safetensors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", metavar="IN", help="a model's name, a GGUF file, or a folder with safetensors")
    parser.add_argument(
        "-o", "--output", required=True, metavar="OUT", help="NAME.gguf for a GGUF file, anything else is a folder"
    )
    parser.add_argument(
        "--dtype", choices=[dtype.lower() for dtype in STORED], default="f32", help="of the matrices; f32 (default) loses nothing"
    )
    parser.add_argument(
        "--max-shard-size", type=float, default=5.0, metavar="GB", help="of a safetensors file (default: %(default)g)"
    )


def output_path(name: str) -> Path:
    if "\0" in name:
        raise InvalidCheckpoint("--output holds a NUL; expected the name of a file or folder")
    return Path(name)


def write(checkpoint: Checkpoint, output: Path, dtype: str, max_shard_bytes: int = 5_000_000_000) -> None:
    """A GGUF file if that is what its name says, and else a folder."""
    try:
        if output.name.lower().endswith(".gguf"):
            write_gguf(checkpoint, output, dtype)
        else:
            write_safetensors(checkpoint, output, dtype, max_shard_bytes=max_shard_bytes)
    except OSError as error:
        raise InvalidCheckpoint(f"{output}: cannot be written: {error.strerror or error}") from None


def run(args: argparse.Namespace) -> dict[str, Any]:
    output = output_path(args.output)
    if not 0 < args.max_shard_size < float("inf"):
        raise InvalidCheckpoint(f"--max-shard-size is {args.max_shard_size}; expected gigabytes, more than 0")
    checkpoint, dtype = load_checkpoint(args.input), args.dtype.upper()
    write(checkpoint, output, dtype, int(args.max_shard_size * 1e9))
    files = [output] if output.is_file() else sorted(output.iterdir())
    size = sum(file.stat().st_size for file in files)
    print(f"{output}: {checkpoint.config.name} in {args.dtype}, {size / 1e6:.1f} MB in {len(files)} file(s)")
    return {"output": str(output), "model": checkpoint.config.name, "dtype": args.dtype, "bytes": size, "files": len(files)}
