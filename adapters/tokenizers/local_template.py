"""Which chat templates write each message by what stands near it, so that the end of a chat can be rendered alone.

A template is local if its source proves that it is

    what comes first     by the first messages, tools and arguments
    one message loop     each message by itself, those first ones, its neighbours, whether it is the first or last, and
                         whether its number is even
    what comes last      by all of that, and the last message

and that nothing is carried from one message to the next. Then leaving out an even number of messages in the middle
leaves out what they wrote and changes nothing far from there (`spliced_chat`). Every node of the source has to be known
here: a template with another one (a namespace that the loop changes, a second loop, a macro, a count of messages) is
not local, whatever it does. What a `set` in a loop assigns ends with the iteration, and the sandbox changes no list.
"""

from dataclasses import dataclass, replace

from jinja2 import TemplateError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from adapters.tokenizers.local_nodes import (
    FILTERS,
    FUNCTIONS,
    LOCAL_LOOP_FIELDS,
    LOOP_FIELDS,
    METHODS,
    PLAIN,
    STATEFUL,
    TESTS,
    are_messages,
    counts,
    is_first,
    names_of,
)

NUM_FIRST = 8
"""So many messages may be read from anywhere."""

NUM_NEAR = 4
"""A message may be read from so far away."""

_MAX_SLICES = 2
"""Of the form [1:], each of which moves what a number stands for by one."""


class _NotLocalError(Exception):
    """Something in the source is not known to be local."""


@dataclass(frozen=True, slots=True)
class _Place:
    """`loop_fields`: what may be read of `loop` here. `counts`: `loop` is the message loop's, without a filter.
    `is_past_first`: what is here is looked at for no first message."""

    in_loop: bool = False
    in_message_loop: bool = False
    loop_fields: frozenset[str] = frozenset()
    counts: bool = False
    is_past_first: bool = False


def names_of_messages(source: str) -> frozenset[str] | None:
    """What a local template calls its messages; None if it is not known to be local."""
    try:
        template = ImmutableSandboxedEnvironment().parse(source)
        proof = _Proof(template)
        proof.check(template, _Place())
        proof.check_namespaces()
    except (_NotLocalError, TemplateError, RecursionError):
        return None
    return frozenset(proof.names)


class _Proof:
    """`check` raises unless the node is known to be local in its place. Nodes are looked at in their order."""

    def __init__(self, template: nodes.Template) -> None:
        self.names = names_of(template)
        self._is_past_loop = False
        self._changed: set[str] = set()
        self._assigned: list[tuple[str, bool]] = []
        naming = [one for one in template.find_all(nodes.Getitem) if self._are_messages(one)]
        _require(len(naming) <= _MAX_SLICES)

    def check(self, node: nodes.Node, place: _Place) -> None:
        match node:
            case nodes.For():
                self._check_for(node, place)
            case nodes.Assign(target=target, node=value):
                self._check_assign(target, value, place)
            case nodes.AssignBlock(target=nodes.Name(name=name), filter=None):
                self._assign(name, place, is_new_namespace=False)
                self._check_children(node, place)
            case nodes.Or(left=left, right=right) | nodes.And(left=nodes.Not(node=left), right=right) if is_first(left):
                self.check(left, place)
                self.check(right, replace(place, is_past_first=place.counts))
            case nodes.Call(dyn_args=None, dyn_kwargs=None):
                self._check_call(node, place)
            case _ if not self._is_known(node, place):
                _require(_is_plain(node))
                self._check_children(node, place)
            case _:
                pass

    def _is_known(self, node: nodes.Node, place: _Place) -> bool:
        """Whether nothing of it needs to be looked at."""
        match node:
            case nodes.Name(name=name):
                _require(name != "loop" and name not in self.names and name not in STATEFUL)
            case nodes.Getattr(node=nodes.Name(name="loop"), attr=attr):
                _require(attr in place.loop_fields)
            case nodes.Getitem(node=nodes.Name(name=name), arg=arg) if name in self.names:
                self._check_reading(arg, place)
            case nodes.Compare(expr=expr, ops=[nodes.Operand(expr=nodes.Const(value=int(number)))]):
                return place.counts and counts(expr) and 0 <= number < NUM_FIRST // 2
            case nodes.Mod(left=left, right=nodes.Const(value=2)):
                return place.counts and counts(left)
            case _:
                return False
        return True

    def check_namespaces(self) -> None:
        """Those that the message loop changes are made in it, and so anew for each message."""
        _require(self._changed <= {name for name, _ in self._assigned})
        for name, is_new in self._assigned:
            _require(is_new or name not in self._changed)

    def _check_children(self, node: nodes.Node, place: _Place) -> None:
        for child in node.iter_child_nodes():
            self.check(child, place)

    def _check_for(self, node: nodes.For, place: _Place) -> None:
        _require(not node.recursive)
        for target in (node.target, *node.target.find_all(nodes.Name)):
            if isinstance(target, nodes.Name):
                self._assign(target.name, place, is_new_namespace=False)
            else:
                _require(isinstance(target, nodes.Tuple))
        if self._are_messages(node.iter):
            _require(not (place.in_loop or self._is_past_loop or node.else_))
            fields = LOCAL_LOOP_FIELDS if node.test is None else frozenset[str]()
            within = _Place(True, True, fields, counts=node.test is None)
        else:
            iterated = node.iter
            if isinstance(iterated, nodes.Filter) and iterated.name == "items" and iterated.node is not None:
                iterated = iterated.node
            self.check(iterated, place)
            within = _Place(True, place.in_message_loop, LOOP_FIELDS)
        if node.test is not None:
            self.check(node.test, replace(within, loop_fields=frozenset(), counts=False))
        for child in node.body:
            self.check(child, within)
        for child in node.else_:
            self.check(child, place)
        self._is_past_loop |= within.in_message_loop and not place.in_message_loop

    def _check_assign(self, target: nodes.Node, value: nodes.Node, place: _Place) -> None:
        match target:
            case nodes.Name(name=name) if name in self.names:
                _require(not place.in_loop)
                self._check_naming(value, place)
                return
            case nodes.Name(name=name):
                is_new = isinstance(value, nodes.Call) and value.node == nodes.Name("namespace", "load")
                self._assign(name, place, is_new_namespace=is_new and place.in_message_loop)
            case nodes.NSRef(name=name):
                _require(name not in self.names)
                if place.in_message_loop:
                    self._changed.add(name)
            case nodes.Tuple(items=items):
                for item in items:
                    _require(isinstance(item, nodes.Name))
                    assert isinstance(item, nodes.Name)
                    self._assign(item.name, place, is_new_namespace=False)
            case _:
                raise _NotLocalError
        self.check(value, place)

    def _assign(self, name: str, place: _Place, *, is_new_namespace: bool) -> None:
        _require(name not in self.names and name not in FUNCTIONS)
        self._assigned.append((name, is_new_namespace and place.in_message_loop))

    def _check_naming(self, value: nodes.Node, place: _Place) -> None:
        """What another name of the messages stands for."""
        if isinstance(value, nodes.CondExpr):
            self.check(value.test, place)
            for one in (value.expr1, value.expr2):
                _require(one is not None)
                assert one is not None
                self._check_naming(one, place)
            return
        _require(self._are_messages(value))

    def _check_reading(self, number: nodes.Node, place: _Place) -> None:
        match number:
            case nodes.Const(value=int(at)):
                _require(0 <= at < NUM_FIRST // 2)
            case nodes.Neg(node=nodes.Const(value=1)):
                _require(self._is_past_loop and not place.in_loop)
            case nodes.Add(left=nodes.Getattr(attr="index0") as left, right=nodes.Const(value=1)):
                _require(counts(left) and place.counts)
            case nodes.Sub(left=nodes.Getattr(attr="index0") as left, right=nodes.Const(value=1)):
                _require(counts(left) and place.counts and place.is_past_first)
            case _:
                raise _NotLocalError

    def _check_call(self, node: nodes.Call, place: _Place) -> None:
        match node.node:
            case nodes.Name(name=name):
                _require(name in FUNCTIONS)
            case nodes.Getattr(node=owner, attr=attr):
                _require(attr in METHODS)
                self.check(owner, place)
            case _:
                raise _NotLocalError
        for argument in (*node.args, *node.kwargs):
            self.check(argument, place)

    def _are_messages(self, node: nodes.Node) -> bool:
        return are_messages(node, self.names)


def _is_plain(node: nodes.Node) -> bool:
    """Whether it is local if all within it is."""
    match node:
        case nodes.Filter(node=nodes.Expr(), name=name, dyn_args=None, dyn_kwargs=None):
            return name in FILTERS
        case nodes.Test(name=name, dyn_args=None, dyn_kwargs=None):
            return name in TESTS
        case _:
            return type(node) in PLAIN


def _require(is_known: bool) -> None:
    if not is_known:
        raise _NotLocalError


__all__ = ("NUM_FIRST", "NUM_NEAR", "names_of_messages")
