"""What a benchmark found, as tables in a terminal.

>>> print_table("", ["name", "time"], [["a", "1 ms"]])       # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from labcore.bench.stamp import sentence
from labcore.bench.timing import duration

NAMES = ("", " ", "operator", "backend", "shape", "bound", "goal")
Document = dict[str, Any]
Facts = tuple[str, Sequence[str], Sequence[Sequence[str]]]  # title, columns, rows


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table, if there are rows; names stand on the left, numbers on the right."""
    if not rows:
        return
    table = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, justify="left" if column in NAMES else "right")
    for row in rows:
        table.add_row(*row)
    _console().print(table)


def say(text: str) -> None:
    _console().print(text, soft_wrap=True)


def _console() -> Console:
    """Made anew: it takes the stdout of the moment. A file or a pipe has no width, and nothing in it needs to be wrapped."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=160)


def show(document: Document, *tables: Facts, before: Iterable[str] = (), after: Iterable[str] = ()) -> None:
    """The stamp and the ceilings; what is said before the tables, those that have rows, what is said after them; the goals."""
    say(sentence(document["stamp"]))
    if "ceilings" in document:
        c = document["ceilings"]
        int8 = f", int8 {c['int8_dots'] / 1e9:.0f} GOP/s" if c["int8_dots"] else ""
        say(
            f"ceilings with {c['threads']} threads, by {c['measured_by']}: read {c['read'] / 1e9:.1f} GB/s, "
            f"copy {c['copy'] / 1e9:.1f} GB/s, float32 {c['multiply_adds'] / 1e9:.0f} GFLOP/s{int8}"
        )
    for text in before:
        say(text)
    goals = [
        [goal["name"], "not measured" if goal["value"] is None else f"{goal['value']:.2f}", goal["goal"], _verdict(goal)]
        for goal in document["goals"]
    ]
    for title, columns, rows in tables:
        print_table(title, columns, rows)
    for text in after:
        say(text)
    print_table("Goals", ["", "found", "goal", "met"], goals)


def _verdict(goal: Document) -> str:
    """The reason too, where nothing was found."""
    verdict = "yes" if goal["met"] else "no"
    return f"{verdict}: {goal['why']}" if goal["why"] else verdict


def load_text(run: Document) -> str:
    """How busy the machine was with others."""
    if run["foreign_cores"] is None:
        return "the system does not tell what else ran"
    return f"{run['foreign_cores']:.2f} cores busy for others, {run['stolen_cores']:.2f} stolen, try {run['tries']}"


def absences(document: Document) -> list[str]:
    return [f"{name} is absent: {reason}" for name, reason in document["absent"].items()]


def print_kernels(document: Document) -> None:
    backends = [[b["name"], "yes" if b["available"] else "no", b["reason"]] for b in document["backends"]]
    rows = [
        [
            r["operator"], r["shape"], r["backend"], duration(r["p50"]), duration(r["p99"]), f"{r['error']:.1e}",
            f"{r['bytes_per_second'] / 1e9:.1f}", f"{r['flops_per_second'] / 1e9:.1f}", f"{r['share_of_ceiling']:.0%}",
        ]
        for r in document["rows"]
    ]  # fmt: skip
    columns = ["operator", "shape", "backend", "p50", "p99", "error", "GB/s", "GFLOP/s", "of the ceiling"]
    names = list(dict.fromkeys(name for run in document["contenders"].values() for name in run["timings"]))
    races = [
        [operator, *(duration(run["timings"][name]["p50"]) if name in run["timings"] else "" for name in names), load_text(run)]
        for operator, run in document["contenders"].items()
    ]
    calls = [
        [row["name"], "" if row["empty_ns"] is None else f"{row['empty_ns']:.0f}", f"{row['arrays_ns']:.0f}"]
        for row in document["calls"]
    ]
    show(
        document,
        ("", ["backend", "available", ""], backends),
        ("Operators (above 100 %: in caches)", columns, rows),
        ("512 x 512, results written into the same arrays again and again", ["operator", *names, ""], races),
        ("A call from Python, ns", ["", "empty", "rms_norm of 1 x 16"], calls),
    )


def print_model(document: Document) -> None:
    rows = [
        [
            r["name"], f"{r['tokens_per_second']:.1f}", duration(r["seconds"]), f"{r['spread']:.0%}", f"{r['bytes'] / 1e6:.1f}",
            f"{r['flops'] / 1e9:.2f}", duration(r["floor_seconds"]), r["bound"], f"{r['share_of_floor']:.0%}",
        ]
        for r in document["rows"]
    ]  # fmt: skip
    columns = ["", "tokens/s", "time", "spread", "MB", "GFLOP", "floor", "bound", "of the floor"]
    growth = document["loading"]["resident_growth"]
    grown = "not known" if growth is None else f"{growth / 1e6:.0f} MB"
    ready = f"ready after {duration(document['loading']['seconds'])}; resident growth {grown}, KV pool apart"
    title = f"{document['model']}, {document['weights']} weights: through the whole engine"
    show(document, (title, columns, rows), after=[load_text(document["run"]), ready])


def print_peers(document: Document) -> None:
    said = []
    for name, versions in document["versions"].items():
        facts = (f"{key} {value:.2f}" if isinstance(value, float) else f"{key} {value}" for key, value in versions.items())
        said.append(f"{name}: {', '.join(facts)}")
    names = list(document["versions"])
    rows = []
    for workload, result in document["results"].items():
        rates = result["tokens_per_second"]
        rows.append([workload, *(f"{rates[name]:.0f}" if name in rates else "" for name in names), load_text(result)])
        rows.append(["", *(f"x {result['ratios'][name]:.2f}" if name in result["ratios"] else "" for name in names), ""])
    title = "Tokens per second; below, how many times as fast labcore is (medians of rounds)"
    show(document, (title, ["", *names, " "], rows), before=[*said, *absences(document)])


def print_quality(document: Document) -> None:
    rows = [
        [name, f"{found['mean_kl']:.5f}", f"{found['max_kl']:.3f}", f"{found['same_best']:.1%}"]
        for name, found in document["engines"].items()
    ]
    title = f"{document['tokens']} tokens of {document['text']}: against the same file in float32"
    show(document, (title, ["", "mean KL, nats", "worst", "same best token"], rows), after=absences(document))


def print_attention(document: Document) -> None:
    decode = [
        [f"{r['context']:,}", duration(r["seconds"]), duration(r["floor"]), f"{r['share_of_floor']:.0%}"]
        for r in document["decode"]
    ]
    prefill = [
        [f"{r['tokens']:,}", duration(r["seconds"]), "" if r["times_torch"] is None else f"{r['times_torch']:.2f}", load_text(r)]
        for r in document["prefill"]
    ]
    show(
        document,
        ("Decode, one token, all layers from memory", ["cached tokens", "time", "floor", "of the floor"], decode),
        ("Prefill, one layer", ["tokens", "time", "over torch SDPA's", ""], prefill),
    )


def print_scheduling(document: Document) -> None:
    rows = [[n, duration(t["recorded"]), duration(t["unrecorded"])] for n, t in document["overhead"].items()]
    shares = [[n, f"{share:.2%}"] for n, share in document["share"].items()]
    growth = [
        [f"{what}, {int(size):,}", duration(cost)] for what, costs in document["growth"].items() for size, cost in costs.items()
    ]
    of_step = f"Of a decode step of {document['model']}, recorded, with a prefix cache"
    show(
        document,
        ("Schedule and update, a decode step", ["running", "recorded", "unrecorded"], rows),
        (of_step, ["batch", "share of a step"], shares),
        ("A block taken and given back; a cached token inserted, found and evicted", ["", "time"], growth),
    )


def print_sampling(document: Document) -> None:
    shares = [
        [n, name, duration(found["timings"][name]["p50"]), f"{share:.1%}"]
        for n, found in document["batches"].items()
        for name, share in found["shares"].items()
    ]
    loads = [f"batch {n}: {load_text(found)}" for n, found in document["batches"].items()]
    columns = ["batch", " ", "time", "share of a decode step"]
    show(document, (f"Tokens drawn from the logits of {document['model']}", columns, shares), after=loads)
