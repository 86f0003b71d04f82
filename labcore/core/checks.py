"""Checks of a configuration's fields, each named when it is wrong.

>>> at_least(1, CacheConfig(num_blocks=0), "num_blocks")
Traceback (most recent call last):
...
labcore.core.errors.InvalidConfig: CacheConfig.num_blocks is 0; expected a whole number, 1 or more
"""

from __future__ import annotations

from labcore.core.errors import InvalidConfig


def at_least(least: int, config: object, *names: str) -> None:
    """Raises InvalidConfig unless each is a whole number, `least` or more."""
    for name in names:
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int) or not value >= least:
            raise InvalidConfig(f"{type(config).__name__}.{name} is {value!r}; expected a whole number, {least} or more")


def positive(config: object, *names: str) -> None:
    """Raises InvalidConfig unless each is a finite number above 0."""
    for name in names:
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise InvalidConfig(f"{type(config).__name__}.{name} is {value!r}; expected a positive number")


def one_of(known: tuple[str, ...], config: object, name: str) -> None:
    """Raises InvalidConfig unless the value is one of these."""
    value = getattr(config, name)
    if value not in known:
        raise InvalidConfig(f"{type(config).__name__}.{name} is {value!r}; expected one of {', '.join(known)}")
