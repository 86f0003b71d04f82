"""A text and a choice of tokenizer; the tokens come as chips, each with its id, while the text is typed.

>>> LiveTokens({"smollm2": tokenizer}, "Zürich 2026 🚀")    # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ipywidgets import Dropdown, Text  # type: ignore[import-untyped]

from labcore.loaders.tokenizer import Tokenizer
from labcore.widgets.live import GROUNDS, Live, setting, visible

CHIP = "display: inline-block; text-align: center; white-space: pre; margin: 1px; padding: 0 3px; border-radius: 3px"


class LiveTokens(Live):
    """A chip says a token's text, or its bytes where they are no whole characters, and below it the id."""

    def __init__(self, tokenizers: Mapping[str, Tokenizer], text: str) -> None:
        """tokenizers: by the name under which each is offered; the first is chosen."""
        self._tokenizers = dict(tokenizers)
        names = list(self._tokenizers)
        self.text = setting(Text, "text", text)
        self.tokenizer = setting(Dropdown, "tokenizer", names[0], options=names)
        super().__init__([self.text, self.tokenizer])

    def shown(self) -> Iterator[str]:
        tokenizer, text = self._tokenizers[self.tokenizer.value], self.text.value
        num_broken, chips = 0, []
        for i, token_id in enumerate(ids := tokenizer.encode(text)):
            data = tokenizer.token_bytes(token_id)
            try:
                said = visible(data.decode())
            except UnicodeDecodeError:
                num_broken += 1
                said = f"<code>{data.hex(' ')}</code>"
            edge = "; outline: 1px dashed" if tokenizer.is_special(token_id) else ""
            chips.append(f'<span style="{CHIP}; background: {GROUNDS[i % 2]}{edge}">{said}<br><small>{token_id}</small></span>')
        counts = f"tokens: {len(ids)}, of these no whole characters: {num_broken}; characters: {len(text)}"
        counts += f"; bytes: {len(text.encode())} (the two colours only tell neighbours apart)"
        yield f"<div>{' '.join(chips)}</div><div><small>{counts}</small></div>"
