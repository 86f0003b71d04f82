"""Jinja for templates that are not trusted: transformers' set-up, a short list of what may be used, and a meter.

Work is counted, not timed: each operation is a step, and so is each element it touches and every 64 characters. So
MAX_STEPS bounds time and memory; besides, no text is longer than MAX_TEXT characters. The meter sits where Jinja calls
its environment (calls, operators, attributes, filters, tests); what it compiles to plain Python (loops, comparisons,
literals, slices, output) is first rewritten to pass by the meter too, and who runs a body of statements again pays for
its length. No value is larger than what was paid for it, so whatever reads a whole value, such as a comparison, is
bounded as well. What takes more time than its values are long is left out: searching from the right, sets, keys of dicts
that could share a hash.

Limits: no inheritance, no includes, no autoescape, no formatting of text (`%`, `format`), and FILTERS only.

    >>> "".join(Sandbox().compiled("{% for word in words %}{{ word }}.{% endfor %}").generate(words=["a", "b"]))
    'a.b.'
"""

from __future__ import annotations

import json
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, ValuesView
from datetime import datetime
from functools import partial, wraps
from typing import Any, NoReturn

from jinja2 import Template, nodes, pass_context
from jinja2.defaults import DEFAULT_FILTERS, DEFAULT_TESTS
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, TemplateReference
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace

from labcore.loaders.template_meter import Metered, small_number

MAX_STEPS, CHARACTERS_PER_STEP, MAX_TEXT, MAX_TEMPLATE = 250_000, 64, 2_000_000, 65_536
MAX_INDENT, MAX_EXPONENT, MAX_STRIPPED, MAX_TIME_FORM = 64, 64, 64, 256

FREE_FILTERS = frozenset({"length", "count", "first", "last", "default", "d"})  # they look at one element at most
FILTERS = FREE_FILTERS.union(
    ("upper", "lower", "capitalize", "title", "string", "int", "float", "abs"),
    ("list", "items", "dictsort", "sort", "reverse", "map", "select", "reject", "selectattr", "rejectattr"),
)
GLOBALS = ("range", "cycler", "joiner")
TEXT_METHODS = frozenset().union(
    ("strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "replace", "upper", "lower", "capitalize", "title"),
    ("split", "splitlines", "partition", "join", "startswith", "endswith", "find"),
    ("index", "count", "isalpha", "isalnum", "isdigit", "isdecimal", "isnumeric", "isspace", "islower", "isupper"),
)
DICT_METHODS = frozenset({"get", "items", "keys", "values"})


class _GenerationTag(Extension):
    """`{% generation %}` marks what a model is trained on; here it is a scope and nothing more."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Namespace(Namespace):
    """Jinja's, without private names, and without a text of all it holds: it may hold itself."""

    def __setitem__(self, name: str, value: object) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a namespace has no place for the private name {name!r:.60}")
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


def _dict(values: Any = None, /, **more: Any) -> dict[str, Any]:
    return {**(values or {}), **more}  # a list of pairs is no mapping: its keys would be unchecked


def _namespace(values: Any = None, /, **more: Any) -> Namespace:
    namespace = _Namespace()
    for name, value in _dict(values, **more).items():
        namespace[name] = value
    return namespace


def _key(key: Any) -> Any:
    """Many numbers, and tuples of them, can be made to share one hash, and then each is compared with all."""
    if not isinstance(key, str) and hash(key) != key:
        raise SecurityError(f"the key of a dict is {key!r:.60}; supported: texts and small numbers")
    return key


def _raise_exception(message: object) -> NoReturn:
    raise TemplateError(str(message))


def _strftime_now(form: str) -> str:
    if len(form) > MAX_TIME_FORM:
        raise SecurityError(f"strftime_now has a form of {len(form)} characters; expected up to {MAX_TIME_FORM}")
    return datetime.now().strftime(form)


class Sandbox(ImmutableSandboxedEnvironment):
    """For one template and one rendering. What is refused, or is too much, raises SecurityError."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        extensions = [_GenerationTag, "jinja2.ext.loopcontrols"]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, optimized=False)
        self.steps_left = MAX_STEPS
        filters: dict[str, Any] = DEFAULT_FILTERS
        tests: dict[str, Any] = DEFAULT_TESTS
        self.filters = {name: self._metered(filters[name], free=name in FREE_FILTERS) for name in FILTERS}
        self.filters |= {"paid": pass_context(lambda _, value: self.pay(value)), "each": self.each, "key": _key}
        self.filters |= {"length_paid": self.pay_length, "safe": self.filters["string"]}
        self.filters["trim"] = self._metered(lambda text, chars=None: self.strip(str(text).strip, chars))
        self.filters |= {"join": self.join, "replace": self.replace, "tojson": self.tojson}
        self.tests = {name: self._metered(test) for name, test in tests.items()}
        self.globals = {name: self.globals[name] for name in GLOBALS} | {"dict": _dict, "namespace": _namespace}
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

    def compiled(self, source: str) -> Template:
        if len(source) > MAX_TEMPLATE:
            raise SecurityError(f"it has {len(source)} characters; expected up to {MAX_TEMPLATE}")
        return self.from_string(Metered().visit(self.parse(source)))

    def pay(self, value: Any) -> Any:
        """The value, for its steps: one, those of its elements all the way down, and one for every 64 characters."""
        self.steps_left -= 1
        if isinstance(small_number(value), str):
            self.expect_text(len(value))
            self.steps_left -= len(value) // CHARACTERS_PER_STEP
        if self.steps_left < 0:
            raise SecurityError(f"it takes more than {MAX_STEPS} steps")
        if isinstance(value, list | tuple | dict | range | ItemsView | KeysView | ValuesView):
            for element in value.items() if isinstance(value, dict) else value:
                self.pay(element)
        return value

    def pay_length(self, steps: int) -> Any:
        self.steps_left -= max(0, steps)  # a template that calls this earns nothing by it, nor by NaN
        return self.pay(True)

    def expect_text(self, length: int) -> None:
        if length > MAX_TEXT:
            raise SecurityError(f"it makes a text of {length} characters; expected up to {MAX_TEXT}")

    def each(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self.pay(None)
            yield value

    def _metered(self, function: Callable[..., Any], free: bool = False) -> Callable[..., Any]:
        """A filter or a test that pays for what it gets and gives."""

        @wraps(function)  # keeps Jinja's mark on those that want its context first
        def run(*args: Any, **kwargs: Any) -> Any:
            self.pay(None if free else (args, kwargs))
            return self._given(function(*args, **kwargs))

        return run

    def _given(self, result: Any) -> Any:
        return self.each(result) if isinstance(result, Iterator) else self.pay(result)

    def join(self, values: Iterable[Any], separator: Any = "") -> str:
        separator = str(self.pay(separator))
        texts = [str(self.pay(value)) for value in self.each(values)]
        self.expect_text(sum(map(len, texts)) + len(texts) * len(separator))
        return self.pay(separator.join(texts))

    def replace(self, text: Any, old: Any, new: Any, count: int | None = None) -> str:
        text, old, new = (self.pay(str(self.pay(part))) for part in (text, old, new))
        self.expect_text(text.count(old) * len(new))
        return self.pay(text.replace(old, new, -1 if count is None else count))

    def strip(self, method: Callable[[str | None], str], chars: str | None = None) -> str:
        if chars is not None and len(chars) > MAX_STRIPPED:  # each character of the text is looked up among them
            raise SecurityError(f"it strips a text of any of {len(chars)} characters; expected up to {MAX_STRIPPED}")
        return method(chars)

    def tojson(
        self, value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        if indent is not None and not (isinstance(indent, int) and indent <= MAX_INDENT):
            raise SecurityError(f"tojson has indent {indent!r:.60}; expected a number up to {MAX_INDENT}")
        encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        return self.join(encoder.iterencode(value))

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.pay((args, kwargs))
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str):
            self.pay(owner)
            if function.__name__ == "replace":
                function = partial(self.replace, owner)
            elif function.__name__ == "join":
                function = partial(self.join, separator=owner)
            elif function.__name__ in ("strip", "lstrip", "rstrip"):
                function = partial(self.strip, function)
        return self._given(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        match operator, left, right:
            case "%", str(), _:
                raise SecurityError("formatting a text with % is not supported")
            case ("-", KeysView() | ItemsView(), _) | ("-", _, KeysView() | ItemsView()):
                raise SecurityError("the views of dicts are no sets here")
            case ("*", str() | list() | tuple() as many, int(times)) | ("*", int(times), str() | list() | tuple() as many):
                self.expect_text(len(many) * times)
            case "**", _, _ if not (abs(left) < 2**MAX_EXPONENT and abs(right) <= MAX_EXPONENT):
                raise SecurityError(f"powers are supported up to (2**{MAX_EXPONENT}) ** {MAX_EXPONENT}")
        return self.pay(super().call_binop(context, operator, left, right))

    def getattr(self, obj: Any, attribute: str) -> Any:
        self.pay(None)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self.pay(None)
        return super().getitem(obj, argument)

    def wrap_str_format(self, value: Any) -> None:
        """`format` is no method here: its fields reach for attributes, and have widths."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr in TEXT_METHODS
        if isinstance(obj, dict):
            return attr in DICT_METHODS
        known = isinstance(obj, LoopContext | TemplateReference | Cycler | Joiner | Namespace)
        return known and super().is_safe_attribute(obj, attr, value)
