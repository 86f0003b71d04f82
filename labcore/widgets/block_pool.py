"""The pool of KV blocks over the steps of a run: who holds which block, and how full it is.

>>> BlockPool(trace_of(llm.engine, records))    # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Mapping

from labcore.core.trace import StepRecord
from labcore.engine.trace_file import Trace
from labcore.widgets.replay import Replay, counted, listed
from labcore.widgets.story import Moment, names_of, story

CAPTION = (
    "A box is a block with its number; its colour and its name say who holds it after the step, and its bar how many of its "
    "slots are filled. + was taken in this step, − was given back. A block with several names is shared (a+3: by a and three "
    "more). Choose a block to see which positions it holds."
)
COPIES = " ←5 was copied from block 5 before it is written, and +2 has two more holders than before."
KEPT = " A hatched block is held by nobody and kept by the prefix cache; a hatched edge is a block that is held and kept."


class BlockPool(Replay):
    """All blocks of a trace's pool. Blocks behind the last that was ever held are counted, not drawn."""

    def __init__(self, trace: Trace, *, link: str = "pool", caption: str = "", step: int | None = None) -> None:
        """caption: how to read it, in the place of the usual words. Raises InvalidTrace: an empty trace."""
        cache, names = trace.config.cache, names_of(trace)
        told = list(story(trace))
        tables = list(dict.fromkeys(moment.blocks for _, moments in told for moment in moments.values()))
        place = {table: i for i, table in enumerate(tables)}
        last = max((block for table in tables for block in table), default=-1)
        frames, says, rows = [], [], []
        before: dict[int, Moment] = {}
        for record, moments in told:
            held = {block for moment in moments.values() for block in moment.held}
            frames.append([[m.request, place[m.blocks], m.computed, m.known, m.doing, m.ended] for m in moments.values()])
            given = _given_back(before, moments)
            says.append(_says(names, record, moments, given, cache.block_size))
            says[-1] += f" {len(held)} of {cache.num_blocks:,} blocks are held."
            rows.append([record.used_blocks, record.cached_blocks, record.free_blocks])
            before = moments
        copied, kept = [record.copied for record, _ in told], [(record.evicted, record.kept) for record, _ in told]
        usual = CAPTION + (COPIES if any(copied) else "") + (KEPT if any(came for _, came in kept) else "")
        data = {
            "block_size": cache.block_size, "num_blocks": cache.num_blocks,
            "num_drawn": min(cache.num_blocks, -(-(last + 1) // 8) * 8),
            "names": names, "tables": tables, "frames": frames, "copied": copied, "kept": kept,
        }  # fmt: skip
        super().__init__(
            title=f"The pool: {cache.num_blocks:,} blocks of {counted(cache.block_size, 'slot')}", caption=caption or usual,
            link=link, first=trace.steps[0].step, step=step, says=says, columns=["held", "cached", "free"], rows=rows, data=data,
        )  # fmt: skip


def _given_back(before: Mapping[int, Moment], now: Mapping[int, Moment]) -> dict[int, int]:
    """How many blocks each request gave back in this step."""
    old = {request: moment.held for request, moment in before.items()} | {r: m.blocks for r, m in now.items() if m.blocks}
    return {request: len(old[request]) for request in now if old.get(request) and not now[request].held}


def _says(names: list[str], record: StepRecord, moments: Mapping[int, Moment], given: Mapping[int, int], block_size: int) -> str:
    """What happens to the blocks in this step."""
    said = []
    shares = [f"{m.computed - m.start} for {names[r]}" for r, m in moments.items() if m.computed > m.start and m.ended != "abort"]
    if shares:
        said.append(f"Tokens computed: {listed(shares)}.")
    else:
        said.append(f"Nothing runs: {record.idle_reason or 'no reason is recorded'}.")
    if record.copied:
        said.append(f"Copied before it is written: {listed([f'{old} to {new}' for old, new in record.copied])}.")
    if record.evicted:
        said.append(f"The prefix cache gives up {listed(record.evicted)}.")
    for r, m in moments.items():
        if m.parted_from is not None:
            said.append(f"{names[r]} parts from {names[m.parted_from]} and shares its blocks.")
        known = m.cached // block_size
        if known:
            said.append(f"{names[r]} finds {', '.join(map(str, m.taken[:known]))} in the prefix cache.")
        if m.taken[known:]:
            said.append(f"{names[r]} takes {', '.join(map(str, m.taken[known:]))}.")
        if r in given:
            why = m.ended.replace("_", " ") if m.ended else "preempted"
            said.append(f"{names[r]} gives back {counted(given[r], 'block')} ({why}).")
    return " ".join(said)
