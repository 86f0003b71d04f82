"""What guessing ahead brings: acceptance by place, tokens a pass, speed-up. With --law: whether rejection keeps the law."""

from __future__ import annotations

import argparse
from typing import Any

from labcore.bench.harness import exit_code
from labcore.bench.report import load_text, print_table, show
from labcore.bench.speculation import bench_speculation
from labcore.bench.stamp import stamp
from labcore.core.config import SpeculativeConfig
from labcore.core.errors import InvalidConfig
from labcore.lab.spec_law import table

LAW_COLUMNS = ["", " ", "chi-square", "degrees", "p", "of pairs", "degrees ", "p "]
FAULTY = 1e-6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2", help="a model's name or a path (default: %(default)s)")
    parser.add_argument("--method", choices=("ngram", "draft"), default="ngram", help="who guesses (default: %(default)s)")
    parser.add_argument("--k", type=int, default=4, metavar="N", help="guesses in a step at the most (default: %(default)s)")
    parser.add_argument("--always", action="store_true", help="always the most, however few were right")
    parser.add_argument("--layers", type=int, default=3, help="of the model, that make the draft model (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="turns that each contender gets (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=64, help="of an answer (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=None, help="default: all cores")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed, too")
    parser.add_argument("--law", action="store_true", help="instead: chi-square of tokens that came through rejection")
    parser.add_argument("--answers", type=int, default=20_000, help="of each row of --law (default: %(default)s)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Exit code 1 where an answer changed, or where a way to judge is not what it is said to be."""
    if args.answers < 100:
        raise InvalidConfig(f"--answers is {args.answers}; expected 100 or more")
    return _law(args.answers) if args.law else _speed(args)


def _speed(args: argparse.Namespace) -> dict[str, Any]:
    speculative = SpeculativeConfig(
        method=args.method, num_draft_tokens=args.k, adaptive=not args.always, draft_layers=args.layers
    )
    found = bench_speculation(
        args.model, speculative, rounds=args.rounds, max_tokens=args.max_tokens, threads=args.threads
    )
    places = [f"guess {i + 1}" for i in range(max(len(kind["judged"]) for kind in found["kinds"].values()))]
    rows = []
    for name, kind in found["kinds"].items():
        right = [f"{right / judged:.0%}" for right, judged in zip(kind["right"], kind["judged"], strict=True) if judged]
        right += [""] * (len(places) - len(right))
        same = "yes" if kind["same_answers"] else "NO"
        rows.append([name, *right, f"{kind['tokens_per_pass']:.2f}", f"{kind['speed_up']:.2f}", same])
    title = f"{args.model}, guesses by {args.method}: the share of right ones, tokens a pass, speed-up over plain decoding"
    loads = [f"{name}: {load_text(kind['run'])}" for name, kind in found["kinds"].items()]
    show(found, (title, ["", *places, "tokens a pass", "speed-up", "same answers"], rows), after=loads)
    changed = not all(kind["same_answers"] for kind in found["kinds"].values())
    return found | {"exit_code": int(changed) or exit_code(found, args.check)}


def _law(num_answers: int) -> dict[str, Any]:
    rows = table(num_answers)
    shown = [
        [row["way"], row["world"], *(text for part in ("first", "pairs") for text in _told(row[part]))] for row in rows
    ]
    print_table(f"{num_answers:,} answers of two tokens a row, against the law of the model", LAW_COLUMNS, shown)
    told_apart = all((row["pairs"]["p"] > FAULTY) == row["right"] for row in rows)
    return {"stamp": stamp(), "answers": num_answers, "rows": rows, "exit_code": int(not told_apart)}


def _told(part: dict[str, Any]) -> list[str]:
    statistic = "no such token" if part["chi_square"] is None else f"{part['chi_square']:,.1f}"
    return [statistic, str(part["degrees"]), f"{part['p']:.2g}"]
