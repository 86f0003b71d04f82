"""Rewrites a Jinja template so that all it computes passes by a meter.

Jinja calls its environment for calls, operators, attributes, filters and tests, and a sandbox can count there. Loops,
comparisons, literals, slices and output it compiles to plain Python. Here these are led through filters of the sandbox:
`paid` (a value), `each` (an iteration), `length_paid` (a body that runs), `key` (of a dict), `join` (a text of parts).
"""

from __future__ import annotations

from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.visitor import NodeTransformer

MAX_BITS = 4096
NODES_PER_STEP = 8  # of a template's syntax tree


def small_number(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise SecurityError(f"it makes a number of {value.bit_length()} bits; expected up to {MAX_BITS}")
    return value


class Metered(NodeTransformer):
    """Leads what a template computes without a call past the sandbox's meter."""

    visited = 0

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        self.visited += 1
        return super().visit(node, *args, **kwargs)

    def visit_Macro(self, node: Any) -> Any:
        """What has a body that can run many times; each time it pays for its length."""
        before = self.visited
        self.generic_visit(node)
        length = through("length_paid", nodes.Const((self.visited - before) // NODES_PER_STEP))
        node.body.insert(0, nodes.ExprStmt(length, lineno=node.lineno))
        if isinstance(node, nodes.For):
            node.iter = through("each", node.iter)
            node.test = node.test and nodes.And(length, node.test)  # it runs where the body does not
        return node

    visit_For = visit_CallBlock = visit_Block = visit_Macro

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        self.generic_visit(node)
        parts = (nodes.Const(part.data) if isinstance(part, nodes.TemplateData) else part for part in node.nodes)
        node.nodes = [through("paid", part) for part in parts]
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = through("paid", node.expr)
        for operand in node.ops:
            operand.expr = through("paid", operand.expr)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return through("join", nodes.List(node.nodes))

    def visit_List(self, node: nodes.List | nodes.Dict | nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return through("paid", node)

    visit_Dict = visit_List

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        self.generic_visit(node)
        node.key = through("key", node.key)
        return node

    def visit_Const(self, node: nodes.Const) -> nodes.Node:
        small_number(node.value)
        return node

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self.visit_List(node) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return through("paid", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_ScopedEvalContextModifier(self, node: nodes.ScopedEvalContextModifier) -> NoReturn:
        raise SecurityError("autoescape is not supported")


def through(name: str, node: Any) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None)
