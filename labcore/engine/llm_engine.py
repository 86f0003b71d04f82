"""The engine: requests go in, each step moves all of them, outputs come out. A step is three verbs on one screen.

>>> engine = LLMEngine(load_model("lab"))
>>> engine.add_request("a", "hello", SamplingParams(max_tokens=3, temperature=0.0))
>>> while engine.has_unfinished:
...     outputs = engine.step()
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from math import inf
from numbers import Integral, Real
from threading import Lock

import numpy as np

from labcore.core.config import EngineConfig
from labcore.core.errors import InvalidRequest, LabError
from labcore.core.trace import StepRecord
from labcore.engine.constraint import constraint_of
from labcore.engine.detokenizer import Detokenizer
from labcore.engine.logprobs import Logprobs
from labcore.engine.model_runner import ModelRunner
from labcore.engine.plan import Progress
from labcore.engine.sampling_params import SamplingParams
from labcore.engine.scheduler import Scheduler
from labcore.engine.sequence import FinishReason, Sequence, answer_name
from labcore.engine.speculative.choose import proposer_of
from labcore.kv.paged_cache import PagedCache
from labcore.kv.prefix_cache import Domain
from labcore.model.llama import LlamaModel


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """What a step brought a request: `token_ids` and `text` are new; joined over all steps they are the whole answer.

    Text is whole characters only. An end-of-sequence token is counted in `token_ids` and has no text.
    """

    request_id: str
    index: int = 0  # which of the request's n answers
    token_ids: list[int]
    text: str
    finish_reason: str | None = None  # None while it runs
    error: str = ""  # what went wrong, where finish_reason is "error"
    logprobs: tuple[Logprobs, ...] = ()  # of each token, if they were asked for
    prompt_logprobs: tuple[Logprobs, ...] = ()  # of each prompt token but the first, with the first tokens of an answer

    @property
    def name(self) -> str:
        """Of the answer, as records have it: `a`, or `a#1` for the second answer to request a."""
        return answer_name(self.request_id, self.index)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


def is_token_ids(prompt: object) -> bool:
    """Whether this may hold token ids: a list, a tuple or a 1-D array; bytes are text that is not decoded yet."""
    return isinstance(prompt, list | tuple) or (isinstance(prompt, np.ndarray) and prompt.ndim == 1)


def _check_texts(request_id: object, salt: object) -> None:
    """Names go into traces, and into the names of a request's other answers: `a#1`."""
    for name, text in {"request id": request_id, "salt": salt}.items():
        if not isinstance(text, str) or any("\ud800" <= letter <= "\udfff" for letter in text):
            raise InvalidRequest(f"{name} is {text!r}; expected a text")
    if re.search(r"#\d+$", str(request_id)):
        raise InvalidRequest(f"request id {request_id!r} ends like the name of a further answer (a#1); choose another")


def _check_number(request_id: str, name: str, value: object, kind: type, expected: str) -> None:
    if isinstance(value, bool) or not isinstance(value, kind) or not 0 <= value < inf:  # type: ignore[operator]
        raise InvalidRequest(f"request {request_id!r}: {name} is {value!r}; expected {expected}")


@dataclass(frozen=True, slots=True)
class _Request:
    """A request, and which of its answers have not ended."""

    arrival: int
    open: set[int]


class LLMEngine:
    """A model, a scheduler and a pool. Not thread-safe: one thread adds, steps and aborts; two steps at once are refused."""

    def __init__(
        self,
        model: LlamaModel,
        config: EngineConfig | None = None,
        observer: Callable[[StepRecord], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        draft_model: LlamaModel | None = None,
    ) -> None:
        """observer: called with the record of every step; without one, no record is made. clock: of timeouts, in seconds.

        draft_model: guesses, where the config says "draft"; None = the first layers of the model.
        """
        self.model = model
        self.config = config or EngineConfig()
        self.cache = PagedCache(self.config.cache)
        proposer = proposer_of(self.config, model, draft_model)
        self.scheduler = Scheduler(self.config.scheduler, self.cache, observer, clock, proposer)
        self.runner = ModelRunner(model, self.config.cache, proposer)
        self._requests: dict[str, _Request] = {}
        self._num_added = 0
        self._clock = clock
        self._turn = Lock()

    @property
    def has_unfinished(self) -> bool:
        return self.scheduler.has_unfinished

    def add_request(
        self,
        request_id: str,
        prompt: str | Tokens[int],
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        timeout: float | None = None,
        salt: str = "",
    ) -> int:
        """Queue a prompt (text, or token ids); returns its length in tokens. Raises InvalidRequest, having changed nothing.

        priority: smaller goes first; 0 unless the policy is "priority". timeout: seconds from now after which it is given up.
        salt: only requests of the same salt share cached blocks with it.
        """
        params = params or SamplingParams()
        _check_texts(request_id, salt)
        _check_number(request_id, "priority", priority, Integral, "a whole number, 0 (first) or more")
        if timeout is not None:
            _check_number(request_id, "timeout", timeout, Real, "seconds, 0 or more, or None")
        sequence = self._sequence(request_id, self._prompt_ids(request_id, prompt), params)
        sequence.priority, sequence.domain = int(priority), Domain(salt=salt)
        sequence.deadline = inf if timeout is None else self._clock() + timeout
        self.scheduler.add(sequence)
        self._requests[request_id] = _Request(sequence.arrival, set(range(params.n)))
        self._num_added += 1
        return sequence.num_prompt_tokens

    def step(self) -> list[RequestOutput]:
        """Move every scheduled request on by one step; returns what is new, request by request.

        An observer that raises ends the step after its books are closed; the step's outputs are lost.
        """
        if not self._turn.acquire(blocking=False):
            raise LabError("two threads step one engine at the same time; let one do it, or take turns with a lock")
        try:
            output = self.scheduler.schedule()
            progress = self.scheduler.update(output, self.runner.execute(output))
        except BaseException:
            self._forget_the_ended()
            raise
        finally:
            self._turn.release()
        return [out for one in progress for out in self._outputs(one)]

    def abort(self, request_id: str) -> bool:
        """Give up a request wherever it is; its blocks are free at once. False if it is not here (any more)."""
        self._requests.pop(request_id, None)
        return self.scheduler.abort(request_id)

    def check(self) -> None:
        """Every book balances between steps. Raises AssertionError."""
        self.scheduler.check()
        known = self.scheduler.live.keys() | {s.request_id for s in self.scheduler.expired}
        assert known == self._requests.keys(), "engine and scheduler know other requests"

    def _forget_the_ended(self) -> None:
        """After a step that raised: those whose last output is lost. Who expired is told by the next step."""
        known = self.scheduler.live.keys() | {s.request_id for s in self.scheduler.expired}
        self._requests = {request_id: request for request_id, request in self._requests.items() if request_id in known}

    def _prompt_ids(self, request_id: str, prompt: str | Tokens[int]) -> list[int]:
        tokenizer, vocab_size = self.model.tokenizer, self.model.config.vocab_size
        if isinstance(prompt, str):
            ids = tokenizer.encode(prompt)
            if tokenizer.add_bos and tokenizer.bos_token_id is not None:
                ids.insert(0, tokenizer.bos_token_id)
        else:
            if not is_token_ids(prompt):
                raise InvalidRequest(
                    f"request {request_id!r}: a prompt is a text or a list of token ids; got {type(prompt).__name__}"
                )
            for token in prompt:
                if isinstance(token, bool) or not isinstance(token, Integral) or not 0 <= token < vocab_size:
                    raise InvalidRequest(f"request {request_id!r}: prompt token {token!r} is not an id in [0, {vocab_size})")
            ids = list(map(int, prompt))
        if not ids:
            raise InvalidRequest(f"request {request_id!r}: the prompt is empty; expected at least one token")
        return ids

    def _sequence(self, request_id: str, ids: list[int], params: SamplingParams) -> Sequence:
        config = self.model.config
        if len(ids) + 1 > config.max_model_len:
            raise InvalidRequest(
                f"request {request_id!r}: prompt of {len(ids)} tokens and one more exceed "
                f"the model's context of {config.max_model_len}"
            )
        for name in ("stop_token_ids", "logit_bias", "allowed_token_ids"):
            if bad := [token for token in getattr(params, name) or () if token >= config.vocab_size]:
                raise InvalidRequest(
                    f"request {request_id!r}: {name} has token {bad[0]}, outside the vocabulary of {config.vocab_size}"
                )
        tokenizer = self.model.tokenizer
        constraint = constraint_of(params, tokenizer)
        wanted = min(len(ids) + params.max_tokens, config.max_model_len)
        room = self.config.cache.num_slots
        return Sequence(
            request_id=request_id,
            token_ids=ids,
            num_prompt_tokens=len(ids),
            num_forks=params.n - 1,
            params=params,
            seed=params.seed if params.seed is not None else self.config.seed << 32 | self._num_added,
            stop_token_ids=frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else tokenizer.eos_token_ids),
            reader=Detokenizer(tokenizer, params.stop, params.include_stop),
            constraint=constraint,
            state=constraint.start,
            max_length=min(wanted, room),
            length_reason=FinishReason.LENGTH if wanted <= room else FinishReason.KV_EXHAUSTED,
        )

    def _outputs(self, progress: Progress) -> Iterator[RequestOutput]:
        """What is new for the caller, if there is still one: a request may be aborted while its step is computed."""
        sequence = progress.sequence
        request = self._requests.get(sequence.request_id)
        if request is None or request.arrival != sequence.arrival or not (progress.tokens or progress.reason):
            return
        yield self._output(request, sequence, sequence.index, progress.tokens)
        if progress.reason is not None:
            for index in range(1, 1 + sequence.num_forks):  # answers that will never begin
                yield self._output(request, sequence, index, ())

    def _output(self, request: _Request, sequence: Sequence, index: int, tokens: Tokens[int]) -> RequestOutput:
        reason, reader, num_top = sequence.finish_reason, sequence.reader, sequence.params.logprobs
        assert isinstance(reader, Detokenizer)
        if index != sequence.index:
            reader = reader.fork()
        if reason is not None:
            request.open.discard(index)
            if not request.open:
                del self._requests[sequence.request_id]
        first = len(sequence.output_token_ids) == len(tokens) > 0
        return RequestOutput(
            request_id=sequence.request_id,
            index=index,
            token_ids=list(tokens),
            text=reader.take() if reason is None else reader.finish(),
            finish_reason=reason.value if reason else None,
            error=sequence.error,
            logprobs=() if num_top is None or not tokens else self.runner.logprobs(sequence.name, tokens, num_top),
            prompt_logprobs=tuple(sequence.prompt_logprobs) if first else (),
        )
