"""labcore: a complete LLM inference engine, small enough to read.

The names below load on first use, so that `import labcore` costs nothing and the set-up commands
(`python3 -m labcore up`) start on a bare Python.

    >>> from labcore import LLM, SamplingParams
    >>> llm = LLM("lab")
    >>> llm.generate("hello", SamplingParams(max_tokens=4, temperature=0.0))  # doctest: +SKIP
"""

__version__ = "0.1.0"

_EXPORTS = {
    "LLM": "labcore.engine.llm",
    "LLMEngine": "labcore.engine.llm_engine",
    "SamplingParams": "labcore.engine.sampling_params",
    "CacheConfig": "labcore.core.config",
    "EngineConfig": "labcore.core.config",
    "ModelConfig": "labcore.core.config",
    "SchedulerConfig": "labcore.core.config",
    "get_backend": "labcore.kernels.registry",
    "load_model": "labcore.model.weights",
}
__all__ = sorted(_EXPORTS)


def __getattr__(name):
    if name not in _EXPORTS:
        raise AttributeError("module 'labcore' has no attribute %r" % name)
    import importlib

    return getattr(importlib.import_module(_EXPORTS[name]), name)


def __dir__():
    return sorted(list(globals()) + __all__)
