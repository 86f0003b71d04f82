"""Jinja for templates that are not trusted: transformers' set-up, a short list of what may be used, and a meter.

Work is counted, not timed: each operation is a step, and so is each element it touches and every 64 characters. So
MAX_STEPS bounds time and memory; besides, no text is longer than MAX_TEXT characters. The meter sits where Jinja calls
its environment (calls, operators, filters, tests); what it compiles to plain Python (loops, comparisons, literals,
slices, output) is first rewritten to pass by the meter too. No value is larger than what was paid for it, so whatever
reads a whole value, such as a comparison, is bounded as well.

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
from jinja2.visitor import NodeTransformer

MAX_STEPS, CHARACTERS_PER_STEP, MAX_TEXT, MAX_TEMPLATE = 250_000, 64, 2_000_000, 65_536
MAX_INDENT, MAX_EXPONENT, MAX_BITS = 64, 64, 4096

FREE_FILTERS = frozenset({"length", "count", "first", "last", "default", "d"})  # they look at one element at most
FILTERS = FREE_FILTERS.union(
    ("trim", "upper", "lower", "capitalize", "title", "string", "int", "float", "abs"),
    ("list", "items", "dictsort", "sort", "unique", "reverse", "map", "select", "reject", "selectattr", "rejectattr"),
)
GLOBALS = ("range", "dict", "cycler", "joiner")
TEXT_METHODS = frozenset().union(
    ("strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "replace", "upper", "lower", "capitalize", "title"),
    ("split", "rsplit", "splitlines", "partition", "rpartition", "join", "startswith", "endswith", "find", "rfind"),
    ("index", "rindex", "count", "isalpha", "isalnum", "isdigit", "isdecimal", "isnumeric", "isspace", "islower", "isupper"),
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


def _namespace(*values: Any, **more: Any) -> Namespace:
    namespace = _Namespace()
    for name, value in dict(*values, **more).items():
        namespace[name] = value
    return namespace


def _raise_exception(message: object) -> NoReturn:
    raise TemplateError(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


class _Metered(NodeTransformer):
    """Leads what a template computes without a call past the sandbox's meter."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _through("each", node.iter)
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        self.generic_visit(node)
        parts = (nodes.Const(part.data) if isinstance(part, nodes.TemplateData) else part for part in node.nodes)
        node.nodes = [_through("paid", part) for part in parts]
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _through("paid", node.expr)
        for operand in node.ops:
            operand.expr = _through("paid", operand.expr)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _through("join", nodes.List(node.nodes))

    def visit_List(self, node: nodes.List | nodes.Dict | nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _through("paid", node)

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self.visit_List(node) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _through("paid", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_ScopedEvalContextModifier(self, node: nodes.ScopedEvalContextModifier) -> NoReturn:
        raise SecurityError("autoescape is not supported")


def _through(name: str, node: Any) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None)


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
        self.filters |= {"paid": pass_context(lambda _, value: self.pay(value)), "each": self.each, "safe": str}
        self.filters |= {"join": self.join, "replace": self.replace, "tojson": self.tojson}
        self.tests = {name: self._metered(test) for name, test in tests.items()}
        self.globals = {name: self.globals[name] for name in GLOBALS} | {"namespace": _namespace}
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

    def compiled(self, source: str) -> Template:
        if len(source) > MAX_TEMPLATE:
            raise SecurityError(f"it has {len(source)} characters; expected up to {MAX_TEMPLATE}")
        return self.from_string(_Metered().visit(self.parse(source)))

    def pay(self, value: Any) -> Any:
        """The value, for its steps: one, those of its elements all the way down, and one for every 64 characters."""
        self.steps_left -= 1
        if isinstance(value, str):
            self.expect_text(len(value))
            self.steps_left -= len(value) // CHARACTERS_PER_STEP
        if self.steps_left < 0:
            raise SecurityError(f"it takes more than {MAX_STEPS} steps")
        if isinstance(value, list | tuple | dict | range | ItemsView | KeysView | ValuesView):
            for element in value.items() if isinstance(value, dict) else value:
                self.pay(element)
        return value

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
        texts = [str(self.pay(value)) for value in self.each(values)]
        self.expect_text(sum(map(len, texts)) + len(texts) * len(str(separator)))
        return self.pay(str(separator).join(texts))

    def replace(self, text: Any, old: Any, new: Any, count: int | None = None) -> str:
        text, old, new = (self.pay(str(self.pay(part))) for part in (text, old, new))
        self.expect_text(text.count(old) * len(new))
        return self.pay(text.replace(old, new, -1 if count is None else count))

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
        return self._given(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        match operator, left, right:
            case "%", str(), _:
                raise SecurityError("formatting a text with % is not supported")
            case ("*", str() | list() | tuple() as many, int(times)) | ("*", int(times), str() | list() | tuple() as many):
                self.expect_text(len(many) * times)
            case "**", _, _ if not (abs(left) < 2**MAX_EXPONENT and abs(right) <= MAX_EXPONENT):
                raise SecurityError(f"powers are supported up to (2**{MAX_EXPONENT}) ** {MAX_EXPONENT}")
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, int) and result.bit_length() > MAX_BITS:
            raise SecurityError(f"it makes a number of {result.bit_length()} bits; expected up to {MAX_BITS}")
        return self.pay(result)

    def wrap_str_format(self, value: Any) -> None:
        """`format` is no method here: its fields reach for attributes, and have widths."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr in TEXT_METHODS
        if isinstance(obj, dict):
            return attr in DICT_METHODS
        known = isinstance(obj, LoopContext | TemplateReference | Cycler | Joiner | Namespace)
        return known and super().is_safe_attribute(obj, attr, value)
