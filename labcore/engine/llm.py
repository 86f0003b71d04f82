"""The short way in: prompts to texts in one call.

>>> llm = LLM("smollm2")
>>> llm.generate("The capital of France is", SamplingParams(max_tokens=8, temperature=0.0))[0].text
' Paris...'
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from numbers import Integral
from pathlib import Path

from labcore.core.config import EngineConfig
from labcore.core.errors import InvalidConfig, InvalidRequest, LabError
from labcore.core.trace import StepRecord
from labcore.engine.llm_engine import LLMEngine, RequestOutput, is_token_ids
from labcore.engine.logprobs import Logprobs
from labcore.engine.sampling_params import SamplingParams
from labcore.kernels.api import Backend
from labcore.model.llama import LlamaModel
from labcore.model.weights import load_model

Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A prompt's whole answer, or one of its n."""

    prompt: Prompt
    index: int = 0
    text: str
    token_ids: list[int]
    num_prompt_tokens: int
    finish_reason: str
    error: str = ""  # what went wrong, where finish_reason is "error"
    logprobs: tuple[Logprobs, ...] = ()  # of each token, if they were asked for
    prompt_logprobs: tuple[Logprobs, ...] = ()  # of each prompt token but the first, likewise


class LLM:
    """A model behind an engine. `model`: a name, a path, or a model already loaded."""

    def __init__(
        self,
        model: str | Path | LlamaModel,
        *,
        weights: str = "packed",
        backend: str | Backend | None = None,
        config: EngineConfig | None = None,
        observer: Callable[[StepRecord], None] | None = None,
    ) -> None:
        if isinstance(model, LlamaModel):
            if backend is not None or weights != "packed":
                raise InvalidConfig("the model is loaded already, on its backend: give weights and backend to `load_model`")
            self.model = model
        else:
            self.model = load_model(model, weights=weights, backend=backend)
        self.engine = LLMEngine(self.model, config, observer)
        self._ids = (f"request-{i}" for i in count())
        self._inbox: dict[str, deque[RequestOutput]] = {}  # what `step` brought a request that has not been read yet
        self._num_answers: dict[str, int] = {}

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | list[SamplingParams] | None = None
    ) -> list[Completion]:
        """Complete prompts together, in one batch; answers in the order of the prompts, where n > 1 each prompt's n in a row.

        prompts: one prompt or a list of them; a prompt is a text or a list of token ids. params: one for all, or one each.
        Raises InvalidRequest if any is refused; then none is run.
        """
        many = _as_list(prompts)
        each = list(params) if isinstance(params, list | tuple) else [params] * len(many)
        for own in each:
            if own is not None and not isinstance(own, SamplingParams):
                raise InvalidRequest(f"params is {own!r}; expected SamplingParams, one for all prompts or a list of one each")
        if len(each) != len(many):
            raise InvalidRequest(
                f"{len(many)} prompts came with {len(each)} sampling parameters; expected one for all, or one each"
            )
        ids = [next(self._ids) for _ in many]
        try:
            lengths = [self._add(*request) for request in zip(ids, many, each, strict=True)]
            outputs = [list(self._outputs(request_id)) for request_id in ids]
        finally:
            for request_id in ids:  # whatever happened, nothing of these requests stays behind
                self._forget(request_id)
        return [
            _completion(prompt, length, [out for out in outs if out.index == index])
            for prompt, length, outs in zip(many, lengths, outputs, strict=True)
            for index in sorted({out.index for out in outs})
        ]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """Complete one prompt as tokens arrive, in whole characters; `index` says of which of its n answers.

        A caller who stops listening frees the request.
        Other streams and `generate` may be used in between: their requests run in the same batch.
        Raises InvalidRequest at the first `next`.
        """
        request_id = next(self._ids)
        try:
            self._add(request_id, prompt, params)
            yield from self._outputs(request_id)
        finally:
            self._forget(request_id)

    def _add(self, request_id: str, prompt: Prompt, params: SamplingParams | None) -> int:
        num_prompt_tokens = self.engine.add_request(request_id, prompt, params)
        self._inbox[request_id], self._num_answers[request_id] = deque(), params.n if params else 1
        return num_prompt_tokens

    def _outputs(self, request_id: str) -> Iterator[RequestOutput]:
        inbox, left = self._inbox[request_id], self._num_answers[request_id]
        while True:
            while inbox:
                out = inbox.popleft()
                yield out
                left -= out.finished
                if not left:
                    return
            if not self.engine.has_unfinished:
                raise LabError(f"{request_id} is gone: it was aborted, or an observer raised in its last step")
            for out in self.engine.step():  # moves everybody; each finds its own in its inbox
                if out.request_id in self._inbox:
                    self._inbox[out.request_id].append(out)

    def _forget(self, request_id: str) -> None:
        if self._inbox.pop(request_id, None) is not None:
            del self._num_answers[request_id]
            self.engine.abort(request_id)


def _completion(prompt: Prompt, num_prompt_tokens: int, outputs: list[RequestOutput]) -> Completion:
    return Completion(
        prompt=prompt,
        index=outputs[0].index,
        text="".join(out.text for out in outputs),
        token_ids=[token for out in outputs for token in out.token_ids],
        num_prompt_tokens=num_prompt_tokens,
        finish_reason=outputs[-1].finish_reason or "",
        error=outputs[-1].error,
        logprobs=tuple(one for out in outputs for one in out.logprobs),
        prompt_logprobs=tuple(one for out in outputs for one in out.prompt_logprobs),
    )


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or not is_token_ids(prompts):
        return [prompts]  # type: ignore[list-item]  # what is no prompt is refused by name when it is added
    if len(prompts) and isinstance(prompts[0], Integral | float):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]
