"""What of a chat template's source is known to be local, and the forms in which it speaks of its messages and their
numbers. See `local_template`."""

from collections.abc import Iterator

from jinja2 import nodes

PLAIN = (
    nodes.Template,
    nodes.Output,
    nodes.TemplateData,
    nodes.Const,
    nodes.If,
    nodes.Add,
    nodes.Sub,
    nodes.Mul,
    nodes.Mod,
    nodes.Concat,
    nodes.Not,
    nodes.And,
    nodes.Or,
    nodes.Neg,
    nodes.Compare,
    nodes.Operand,
    nodes.CondExpr,
    nodes.List,
    nodes.Tuple,
    nodes.Dict,
    nodes.Pair,
    nodes.Keyword,
    nodes.Slice,
    nodes.Getattr,
    nodes.Getitem,
    nodes.Name,
)
STATEFUL = frozenset({"cycler", "joiner", "lipsum", "self", "super", "caller", "varargs", "kwargs"})
FUNCTIONS = frozenset({"raise_exception", "range", "namespace", "strftime_now"})
METHODS = frozenset(
    {
        "strip",
        "lstrip",
        "rstrip",
        "split",
        "rsplit",
        "splitlines",
        "startswith",
        "endswith",
        "replace",
        "upper",
        "lower",
        "title",
        "capitalize",
        "join",
        "items",
        "keys",
        "values",
        "get",
        "find",
        "rfind",
        "count",
    }
)
FILTERS = frozenset(
    {
        "trim",
        "tojson",
        "string",
        "length",
        "count",
        "upper",
        "lower",
        "default",
        "d",
        "replace",
        "safe",
        "join",
        "capitalize",
        "title",
        "int",
        "float",
        "first",
        "last",
        "list",
    }
)
"""None that gives an iterator: who reads one changes it."""
TESTS = frozenset(
    {
        "defined",
        "undefined",
        "none",
        "string",
        "mapping",
        "iterable",
        "sequence",
        "number",
        "integer",
        "float",
        "boolean",
        "true",
        "false",
        "in",
        "eq",
        "equalto",
        "==",
        "ne",
        "!=",
        "gt",
        ">",
        "ge",
        ">=",
        "lt",
        "<",
        "le",
        "<=",
        "odd",
        "even",
    }
)
LOOP_FIELDS = frozenset({"first", "last", "index", "index0", "revindex", "revindex0", "length", "previtem", "nextitem"})
LOCAL_LOOP_FIELDS = frozenset({"first", "last", "previtem", "nextitem"})


def names_of(template: nodes.Template) -> set[str]:
    """`messages`, and whatever is set to them, or to all but the first."""
    names, num_before = {"messages"}, 0
    while len(names) > num_before:
        num_before = len(names)
        for assign in template.find_all(nodes.Assign):
            if isinstance(assign.target, nodes.Name) and any(are_messages(one, names) for one in _cases(assign.node)):
                names.add(assign.target.name)
    return names


def _cases(value: nodes.Node | None) -> Iterator[nodes.Node]:
    if isinstance(value, nodes.CondExpr):
        yield from _cases(value.expr1)
        yield from _cases(value.expr2)
    elif value is not None:
        yield value


def are_messages(node: nodes.Node, names: set[str]) -> bool:
    match node:
        case nodes.Name(name=name):
            return name in names
        case nodes.Getitem(
            node=nodes.Name(name=name), arg=nodes.Slice(start=nodes.Const(value=1), stop=None, step=None)
        ):
            return name in names
        case _:
            return False


def counts(node: nodes.Node) -> bool:
    match node:
        case nodes.Getattr(node=nodes.Name(name="loop"), attr="index" | "index0"):
            return True
        case _:
            return False


def is_first(node: nodes.Node) -> bool:
    """Whether it asks for the first of a loop."""
    match node:
        case nodes.Getattr(node=nodes.Name(name="loop"), attr="first"):
            return True
        case nodes.Compare(
            expr=nodes.Getattr(node=nodes.Name(name="loop"), attr="index0"),
            ops=[nodes.Operand(op="eq", expr=nodes.Const(value=0))],
        ):
            return True
        case _:
            return False


__all__ = (
    "FILTERS",
    "FUNCTIONS",
    "LOCAL_LOOP_FIELDS",
    "LOOP_FIELDS",
    "METHODS",
    "PLAIN",
    "STATEFUL",
    "TESTS",
    "are_messages",
    "counts",
    "is_first",
    "names_of",
)
