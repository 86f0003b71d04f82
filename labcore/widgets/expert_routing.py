"""Where the tokens of a text go, layer by layer: each in the colour of its best expert, below them the load of all experts.

>>> ExpertRouting(log.routing(config.moe), pieces)    # a piece of text for each token    # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from labcore.core.errors import InvalidConfig
from labcore.model.expert_load import Routing, balance
from labcore.widgets.replay import Replay, joined, listed

CAPTION = (
    "A step is a layer. A box is a token: its piece of the text, and the numbers of its experts, the best one first and in its "
    "colour (after eight, colours come again). A bar is an expert: how many tokens it has in this layer, and the dashed line is "
    "what each would have if all had the same. Choose a token to see its way through all layers, or an expert to see its tokens."
)


class ExpertRouting(Replay):
    """The experts of every token, and their load, in each layer."""

    _esm = joined("player.js", "expert_routing.js")
    _css = joined("replay.css", "expert_routing.css")

    def __init__(self, routing: Routing, pieces: Sequence[str], *, link: str = "experts", caption: str = CAPTION) -> None:
        """pieces: the text of each token. InvalidConfig: another number of them than tokens."""
        _, tokens, k = routing.expert_ids.shape
        if len(pieces) != tokens:
            raise InvalidConfig(f"{len(pieces)} pieces for {tokens} tokens; expected one for each")
        says, rows = [], []
        for counts in routing.tokens_per_expert:
            fullest, idle = int(counts.argmax()), np.flatnonzero(counts == 0).tolist()
            even = balance(counts)
            rows.append([len(counts) - len(idle), fullest, int(counts.max()), int(counts.min()), f"{even.max_over_mean:.2f}"])
            says.append(
                f"Expert {fullest} has {counts.max()} of {tokens * k} places, {even.max_over_mean:.1f} times the mean; "
                + (f"nobody goes to {listed(idle)}." if idle else f"the emptiest has {counts.min()}.")
            )
        super().__init__(
            title=f"{k} of {routing.num_experts} experts for each of {tokens} tokens", caption=caption, unit="layer", link=link,
            first=0, step=None, says=says, rows=rows,
            columns=["experts touched", "fullest", "its tokens", "tokens of the emptiest", "fullest over mean"],
            data={"pieces": list(pieces), "num_experts": routing.num_experts, "experts": routing.expert_ids.tolist(),
                  "percent": (100 * routing.weights).round().astype(int).tolist()},
        )  # fmt: skip
