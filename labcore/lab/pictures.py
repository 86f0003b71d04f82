"""The book's drawings of what an engine did. Each reads records or batches, none computes anything.

They stand on a transparent ground in dark ink: JupyterLab puts light behind them, the book's dark theme inverts them.

    >>> use_style()
    >>> _ = timeline({"one by one": alone, "together": together})    # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from labcore.core.trace import StepRecord
from labcore.kernels.api import ForwardBatch
from labcore.kv.block_table import slots

# Okabe and Ito's colours, which people with any kind of colour vision tell apart
COLOURS = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#0072b2", "#d55e00", "#f0e442", "#999999")
PROMPT, ANSWER, AGAIN, EMPTY = "#56b4e9", "#e69f00", "#cc79a7", "#e4e4e4"


def use_style() -> None:
    """Set matplotlib up for the book."""
    plt.rcParams.update(
        {
            "figure.facecolor": "none",
            "axes.facecolor": "none",
            "savefig.facecolor": "none",
            "figure.dpi": 110,
            "figure.figsize": (7.2, 3.0),
            "figure.constrained_layout.use": True,
            "font.size": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.prop_cycle": plt.cycler(color=COLOURS),
            "legend.frameon": False,
        }
    )


def plain_ticks(axes: Axes, at: Sequence[int]) -> None:
    """On logarithmic axes: these places on x, and plain numbers on y."""
    axes.set_xticks(at, [str(x) for x in at])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")


def timeline(runs: Mapping[str, Sequence[StepRecord]]) -> Figure:
    """Steps from left to right, requests from top to bottom, in each cell the tokens computed. A panel a run, one scale."""
    names = {title: _requests(records) for title, records in runs.items()}
    most = max(len(records) for records in runs.values())
    heights = [max(len(n), 2) for n in names.values()]
    size = (7.2, 0.9 + sum(0.24 * height + 0.65 for height in heights))
    figure, panels = plt.subplots(len(runs), 1, figsize=size, height_ratios=heights, squeeze=False, sharex=True)
    for axes, (title, records) in zip(panels[:, 0], runs.items(), strict=True):
        _timeline(axes, records, names[title], label=most <= 40)
        axes.set_title(title, loc="left", fontsize=10)
    panels[-1, 0].set_xlim(-0.5, most - 0.5)
    panels[-1, 0].set_xlabel("step")
    panels[-1, 0].xaxis.get_major_locator().set_params(integer=True)
    kinds = {PROMPT: "prompt tokens", ANSWER: "answer tokens", AGAIN: "computed again"}
    drawn = {patch.get_facecolor() for axes in panels[:, 0] for patch in axes.patches}
    handles = [Patch(color=c, label=text) for c, text in kinds.items() if Patch(color=c).get_facecolor() in drawn]
    figure.legend(handles=handles, loc="outside upper right", ncols=3)
    return figure


def _timeline(axes: Axes, records: Sequence[StepRecord], names: list[str], label: bool) -> None:
    furthest = dict.fromkeys(names, 0)  # tokens ever computed: what is computed below this is computed again
    for record in records:
        for share in record.scheduled:
            start = share.num_computed_tokens - share.num_tokens
            decodes = share.num_tokens == 1 and start > 0 and bool(share.sampled)
            colour = AGAIN if start < furthest[share.request_id] else ANSWER if decodes else PROMPT
            furthest[share.request_id] = max(furthest[share.request_id], share.num_computed_tokens)
            row = names.index(share.request_id)
            axes.add_patch(Rectangle((record.step - 0.46, row - 0.42), 0.92, 0.84, color=colour, lw=0))
            if label:
                axes.text(record.step, row, str(share.num_tokens), ha="center", va="center", fontsize=7)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.tick_params(left=False)


def _requests(records: Iterable[StepRecord]) -> list[str]:
    """Request ids in the order in which they first ran."""
    return list(dict.fromkeys(share.request_id for record in records for share in record.scheduled))


def ragged(batch: ForwardBatch, names: Sequence[str], pieces: Sequence[str]) -> Figure:
    """A batch as its arrays lie in memory: a column a token, a colour a sequence; the rows that give logits are framed."""
    figure, axes = plt.subplots(figsize=(7.2, 2.3))
    rows = {"token": pieces, "token_ids": batch.token_ids, "positions": batch.positions, "slot_mapping": batch.slot_mapping}
    for s, name in enumerate(names):
        start, stop = batch.query_start[s], batch.query_start[s + 1]
        axes.add_patch(Rectangle((start - 0.47, -0.5), stop - start - 0.06, len(rows), color=COLOURS[s], alpha=0.45, lw=0))
        axes.text((start + stop - 1) / 2, -0.62, name, ha="center", va="bottom", fontweight="bold")
    for y, values in enumerate(rows.values()):
        for x, value in enumerate(values):
            axes.text(x, y, str(value), ha="center", va="center", fontsize=7.5)
    for x in batch.logits_indices:
        axes.add_patch(Rectangle((x - 0.45, -0.46), 0.9, len(rows) - 0.08, fill=False, lw=1.5))
    axes.set_xlim(-0.6, batch.num_tokens - 0.4)
    axes.set_ylim(len(rows) - 0.4, -1.1)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_xticks(range(batch.num_tokens))
    axes.set_xlabel("row of the batch")
    axes.tick_params(left=False)
    axes.spines[["left", "bottom"]].set_visible(False)
    return figure


def pool(num_blocks: int, block_size: int, tables: Mapping[str, tuple[Sequence[int], int]]) -> Figure:
    """The KV pool: a row a block, a cell a slot, in it a token's position. tables: name -> (block ids, tokens computed)."""
    columns = -(-num_blocks // 8)
    figure, axes = plt.subplots(figsize=(0.29 * columns * (block_size + 2) + 1.2, 2.6))
    for block in range(num_blocks):
        column, row = divmod(block, 8)
        left = column * (block_size + 2)
        axes.text(left - 0.65, row, str(block), ha="right", va="center", fontsize=8)
        for slot in range(block_size):
            axes.add_patch(Rectangle((left + slot - 0.47, row - 0.45), 0.94, 0.9, color=EMPTY, lw=0))
    for s, (table, num_tokens) in enumerate(tables.values()):
        reserved = range(len(table) * block_size)
        for position, slot in zip(reserved, slots(list(table), reserved, block_size), strict=True):
            column, row = divmod(slot // block_size, 8)
            x, full = column * (block_size + 2) + slot % block_size, position < num_tokens
            axes.add_patch(Rectangle((x - 0.47, row - 0.45), 0.94, 0.9, color=COLOURS[s], alpha=1.0 if full else 0.3, lw=0))
            if full:
                axes.text(x, row, str(position), ha="center", va="center", fontsize=7.5)
    axes.set_xlim(-1.5, columns * (block_size + 2) - 2)
    axes.set_ylim(min(num_blocks, 8) - 0.4, -0.6)
    axes.set_aspect("equal")
    axes.axis("off")
    handles = [Patch(color=COLOURS[s], label=name) for s, name in enumerate(tables)]
    figure.legend(handles=[*handles, Patch(color=EMPTY, label="free")], loc="outside right upper")
    return figure
