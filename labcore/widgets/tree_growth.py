"""A radix tree of prefixes over the steps of a run: it grows, splits, and is cut back a block at a time.

A trace says which blocks the cache keeps, not how its tree hangs together; so a witness looks at the tree after each step:

>>> witness = TreeWitness(scheduler.cache.prefix_cache)      # and every StepRecord goes to witness(record)
>>> TreeGrowth(trace, witness)    # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from labcore.core.errors import InvalidTrace
from labcore.core.trace import StepRecord
from labcore.engine.trace_file import Trace
from labcore.kv.prefix_cache import Domain
from labcore.kv.radix_cache import Node, RadixCache
from labcore.widgets.replay import Replay, counted, listed
from labcore.widgets.story import Moment, names_of, story

CAPTION = (
    "A line is an edge of the tree: its first tokens, how many there are, and a box for each of its blocks. A line hangs on the "
    "line above it that stands farther to the left. A box in a colour is held by that request, one with an edge in ink by "
    "several, a hatched one by nobody: it may go. + came in this step. Choose an edge to see all of its tokens and who holds it."
)


class Edge(NamedTuple):
    """A node of the tree as it was after a step."""

    number: int  # the same as long as the node lives
    depth: int
    start: int  # position of its first token
    tokens: tuple[int, ...]
    blocks: tuple[int, ...]
    domain: Domain


class TreeWitness:
    """Keeps all edges of a tree for each step that it is told of, in the order in which they are drawn."""

    def __init__(self, tree: RadixCache) -> None:
        self.tree, self.steps = tree, list[list[Edge]]()
        self._numbers: dict[Node, int] = {}

    def __call__(self, record: StepRecord) -> None:
        self.steps.append([e for domain, root in self.tree.roots.items() for e in self._below(root, domain, 0, 0)])

    def _below(self, parent: Node, domain: Domain, depth: int, start: int) -> Iterator[Edge]:
        for node in parent.children.values():
            number = self._numbers.setdefault(node, len(self._numbers))
            yield Edge(number, depth, start, tuple(node.tokens), tuple(node.blocks), domain)
            yield from self._below(node, domain, depth + 1, start + len(node.tokens))


class TreeGrowth(Replay):
    """What the tree holds after each step, what came, what parted and what was given up."""

    def __init__(self, trace: Trace, witness: TreeWitness, *, link: str = "tree", caption: str = CAPTION) -> None:
        """Raises InvalidTrace: an empty trace, or a witness of other steps."""
        if len(witness.steps) != len(trace.steps):
            raise InvalidTrace(f"the trace has {len(trace.steps)} steps and the witness saw {len(witness.steps)}; give one run")
        texts, names = dict[str, int](), names_of(trace)
        before: list[Edge] = []
        frames, says, rows = [], [], []
        for (record, moments), edges in zip(story(trace), witness.steps, strict=True):
            held = {block: r for r, moment in moments.items() for block in reversed(moment.held)}
            frame = []
            for e in edges:
                text = "".join(map(trace.text, e.tokens))
                who = [[r, n] for r, m in moments.items() if (n := len(set(e.blocks) & set(m.held)))]
                place = texts.setdefault(text, len(texts))
                frame.append([e.number, e.depth, e.start, place, e.blocks, who, "/".join(filter(None, e.domain))])
            frames.append(frame)
            says.append(_says(names, record, moments, before, edges, witness.tree.block_size))
            blocks = sum(len(e.blocks) for e in edges)
            rows.append([len(edges), blocks, blocks - record.cached_blocks, record.cached_blocks, record.hit_tokens])
            assert record.cached_blocks == sum(block not in held for e in edges for block in e.blocks)
            before = edges
        super().__init__(
            title="The tree of prefixes", caption=caption, link=link, first=trace.steps[0].step, step=None, says=says,
            columns=["edges", "blocks in the tree", "held", "idle", "tokens found"], rows=rows,
            data={"block_size": witness.tree.block_size, "names": names, "texts": list(texts), "frames": frames,
                  "kept": [(record.evicted, record.kept) for record in trace.steps]},
        )  # fmt: skip


def _says(
    names: list[str], record: StepRecord, moments: Mapping[int, Moment], before: list[Edge], now: list[Edge], block_size: int
) -> str:
    """What the step did to the tree, in the order in which it was done."""
    said = []
    for r, m in moments.items():
        if m.taken and m.blocks == m.taken and m.parted_from is None:  # it is taken in with this step
            found = m.blocks[: m.cached // block_size]
            where = f"{counted(m.cached, 'token')}, in {listed(found)}" if found else "nothing"
            said.append(f"{names[r]} finds {where}.")
    if record.evicted:
        said.append(f"Given up, least recently used first: {listed(record.evicted)}.")
    old = {e.number: e for e in before}
    for e in now:
        was = old.get(e.number)
        if was is not None and e.start > was.start:  # its upper part has become an edge of its own
            said.append(f"An edge splits before position {e.start}.")
        elif was is not None and (more := len(set(e.blocks) & set(record.kept))):
            said.append(f"An edge grows by {counted(more, 'block')}.")
        elif was is None and set(e.blocks) <= set(record.kept):
            said.append(f"A new edge of {counted(len(e.blocks), 'block')} hangs at position {e.start}.")
    said += [f"{names[r]} ends: {m.ended.replace('_', ' ')}." for r, m in moments.items() if m.ended]
    return " ".join(said) or "The tree stays as it is."
