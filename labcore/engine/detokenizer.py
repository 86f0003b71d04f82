"""Tokens to the text that a caller may see, and the texts that end an answer.

Nothing is given out that may still turn out to be the beginning of a stop text, nor half a character; so a stream joined is the
answer, whatever the tokens are cut into. Of several stops the one that is complete first counts, of those the longest.

    >>> reader = Detokenizer(LabTokenizer(), stop=("END",))
    >>> [(reader.feed(id), reader.take()) for id in b"an END"]
    [(False, 'a'), (False, 'n'), (False, ' '), (False, ''), (False, ''), (True, '')]
"""

from __future__ import annotations

from labcore.loaders.tokenizer import IncrementalDecoder, Tokenizer


class Detokenizer:
    """A `sequence.Reader`. stop: texts that end the answer. include_stop: whether the answer keeps the one that did."""

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...] = (), include_stop: bool = False) -> None:
        self._tokenizer, self._stop, self._include_stop = tokenizer, stop, include_stop
        self._decoder = IncrementalDecoder(tokenizer)
        self._held = ""  # read, and not given out
        self._stopped = False

    def fork(self) -> Detokenizer:
        """As far as this one is: nowhere, since answers part before their first token."""
        return Detokenizer(self._tokenizer, self._stop, self._include_stop)

    def feed(self, token: int, may_stop: bool = True) -> bool:
        self._held += self._decoder.feed([token])
        found = [(at + len(stop), at) for stop in self._stop if may_stop and (at := self._held.find(stop)) >= 0]
        if found:
            end, start = min(found)
            self._held = self._held[: end if self._include_stop else start]
            self._stopped = True
        return self._stopped

    def take(self) -> str:
        """The text that is certain, and was not taken before."""
        end = len(self._held) if self._stopped else len(self._held) - self._open()
        text, self._held = self._held[:end], self._held[end:]
        return text

    def finish(self) -> str:
        """All the rest: no more tokens will come."""
        if not self._stopped:
            self._held += self._decoder.finish()
            self._stopped = True
        return self.take()

    def _open(self) -> int:
        """Characters at the end that a stop text may begin with."""
        most = max((len(stop) - 1 for stop in self._stop), default=0)
        ends = range(min(most, len(self._held)), 0, -1)
        return next((n for n in ends if any(stop.startswith(self._held[-n:]) for stop in self._stop)), 0)
