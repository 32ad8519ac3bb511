"""What a mutant does to a function: where, and what then stands there.

    never(when(2, of=3))                  the second of the three `if` of the function is never true
    keyword(call(Store.put), if_absent="False")
    swapped(call(sync_file), call(Path.replace))

Law: a place is found by the function object, by the kind of the node and by its number, by the
object that is called: never by the name of a variable, nor by how the text is laid out. A place of
which there are more or fewer than `of` does not apply: nothing is guessed.
"""

import ast
import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Edit = Callable[[Function], None]


class DoesNotApplyError(ValueError):
    """The function, or the place in it, is not there as the mutant describes it."""


def plain(thing: Any) -> Any:
    """The function itself, of whatever wraps it: a property, a class method, a context manager."""
    if isinstance(thing, property):
        thing = thing.fget
    if isinstance(thing, functools.cached_property):
        thing = thing.func
    return inspect.unwrap(getattr(thing, "__func__", thing))


def name_of(thing: Any) -> str:
    """The name by which code calls it, or reads it if it is a field or a property."""
    return str(plain(thing).__name__)


def source_of(thing: Any) -> Path:
    """The file of the module that defines it, below the root."""
    return Path(str(plain(thing).__module__).replace(".", "/") + ".py")


def definition(tree: ast.Module, thing: Any) -> Function:
    """Where `thing` is defined in its module. Raises DoesNotApplyError."""
    body: Sequence[ast.stmt] = tree.body
    found: Function | None = None
    wanted = str(plain(thing).__qualname__)
    for part in wanted.split("."):
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        here = [node for node in body if isinstance(node, kinds) and node.name == part]
        if len(here) != 1:
            raise DoesNotApplyError(f"{wanted} is {len(here)} times in its module")
        found, body = here[0], here[0].body
    assert found is not None
    return found


# Where


@dataclass(frozen=True, slots=True)
class Place:
    """The `number`th of the `of` nodes of a function that are `right`, in the order of the text."""

    kind: str
    right: Callable[[ast.AST], bool]
    number: int
    of: int

    def find(self, function: ast.AST) -> ast.AST:
        """The node. Raises DoesNotApplyError."""
        nodes = [node for node in _in_order(function) if self.right(node)]
        if len(nodes) != self.of:
            raise DoesNotApplyError(f"{len(nodes)} times {self.kind}, not {self.of}")
        return nodes[self.number - 1]


@dataclass(frozen=True, slots=True)
class Part:
    """The `number`th of the `of` operands of the `and` or `or` at a place."""

    whole: "Place | Part"
    number: int
    of: int

    def find(self, function: ast.AST) -> ast.AST:
        """The operand. Raises DoesNotApplyError."""
        node = _value(self.whole.find(function))
        if not isinstance(node, ast.BoolOp) or len(node.values) != self.of:
            raise DoesNotApplyError(f"not {self.of} operands, but {ast.unparse(node)}")
        return node.values[self.number - 1]


def _in_order(node: ast.AST) -> list[ast.AST]:
    """The node and all below it, in the order of the text; not the types."""
    found = [node]
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in ("annotation", "returns"):
                found += _in_order(child)
    return found


def _of_kind(*kinds: type[ast.AST]) -> Callable[[ast.AST], bool]:
    return lambda node: isinstance(node, kinds)


def when(number: int = 1, *, of: int = 1) -> Place:
    """An `if` or `elif`."""
    return Place("if", _of_kind(ast.If), number, of)


def choice(number: int = 1, *, of: int = 1) -> Place:
    """An `a if b else c`."""
    return Place("x if y else z", _of_kind(ast.IfExp), number, of)


def comparison(number: int = 1, *, of: int = 1) -> Place:
    """A comparison, as in a condition, a filter or a result."""
    return Place("comparison", _of_kind(ast.Compare), number, of)


def arithmetic(number: int = 1, *, of: int = 1) -> Place:
    """An operation of two values."""
    return Place("operation", _of_kind(ast.BinOp), number, of)


def returned(number: int = 1, *, of: int = 1) -> Place:
    """What a `return` returns."""
    return Place("return", _of_kind(ast.Return), number, of)


def call(called: Any, number: int = 1, *, of: int = 1) -> Place:
    """A call of this function, method or class."""
    name = name_of(called)

    def is_it(node: ast.AST) -> bool:
        if not isinstance(node, ast.Call):
            return False
        if isinstance(node.func, ast.Attribute):
            return node.func.attr == name
        return isinstance(node.func, ast.Name) and node.func.id == name

    return Place(f"{name}()", is_it, number, of)


def part(whole: Place | Part, number: int, *, of: int) -> Part:
    """One operand of the condition, or of the value, at a place."""
    return Part(whole, number, of)


# What


def never(place: Place | Part) -> Edit:
    """The condition is never true."""
    return _constant(place, "False")


def always(place: Place | Part) -> Edit:
    """The condition is always true."""
    return _constant(place, "True")


def becomes(place: Place | Part, text: str) -> Edit:
    """Another expression stands there; `text` names no variable."""
    return _constant(place, text)


def answers(text: str) -> Edit:
    """The function returns this, and does nothing else; `text` names no variable."""

    def edit(function: Function) -> None:
        function.body = [ast.Return(_expression(text))]

    return edit


def gone(place: Place) -> Edit:
    """The statement that is this call is not there."""

    def edit(function: Function) -> None:
        body, at = _statement(function, place)
        if not isinstance(body[at], ast.Expr):
            raise DoesNotApplyError(f"{place.kind} is not a statement of its own")
        body[at] = ast.Pass()

    return edit


def swapped(one: Place, other: Place) -> Edit:
    """The statements with these calls, in the same block, are in the other order."""

    def edit(function: Function) -> None:
        body, at = _statement(function, one)
        same, there = _statement(function, other)
        if body is not same or not at < there:
            raise DoesNotApplyError(f"{one.kind} is not before {other.kind} in one block")
        body[at], body[there] = body[there], body[at]

    return edit


def keyword(place: Place, **given: str | None) -> Edit:
    """The call has these values for its keyword arguments; None: not the argument."""

    def edit(function: Function) -> None:
        node = place.find(function)
        assert isinstance(node, ast.Call)
        for name, text in given.items():
            if name not in {one.arg for one in node.keywords}:
                raise DoesNotApplyError(f"{place.kind} has no argument {name}")
            node.keywords = [one for one in node.keywords if one.arg != name]
            if text is not None:
                node.keywords.append(ast.keyword(name, _expression(text)))

    return edit


def operand(place: Place, number: int) -> Edit:
    """Only this operand of the two, or this argument of the call, stands there (from 1)."""

    def edit(function: Function) -> None:
        node = place.find(function)
        if isinstance(node, ast.Call):
            _replace(function, node, node.args[number - 1])
        else:
            assert isinstance(node, ast.BinOp)
            _replace(function, node, (node.left, node.right)[number - 1])

    return edit


def receiver(place: Place) -> Edit:
    """What the method was called of stands there instead of the call."""

    def edit(function: Function) -> None:
        node = place.find(function)
        assert isinstance(node, ast.Call)
        assert isinstance(node.func, ast.Attribute)
        _replace(function, node, node.func.value)

    return edit


def compared(place: Place, operator: ast.cmpop) -> Edit:
    """The comparison is with this operator."""

    def edit(function: Function) -> None:
        node = place.find(function)
        assert isinstance(node, ast.Compare)
        node.ops = [operator]

    return edit


def reads(attribute: str, other: str) -> Edit:
    """Each read of the one attribute in the function is one of the other."""

    def edit(function: Function) -> None:
        nodes = [n for n in ast.walk(function) if isinstance(n, ast.Attribute)]
        nodes = [node for node in nodes if node.attr == attribute]
        if not nodes:
            raise DoesNotApplyError(f"no .{attribute} is read")
        for node in nodes:
            node.attr = other

    return edit


def _constant(place: Place | Part, text: str) -> Edit:
    def edit(function: Function) -> None:
        node = place.find(function)
        for name in ("test", "value"):
            if (
                isinstance(node, ast.If | ast.While | ast.IfExp | ast.Return)
                and name in node._fields
            ):
                setattr(node, name, _expression(text))
                return
        _replace(function, node, _expression(text))

    return edit


def _value(node: ast.AST) -> ast.AST:
    """What a condition or a `return` has; of any other node, itself."""
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        return node.test
    if isinstance(node, ast.Return) and node.value is not None:
        return node.value
    return node


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _replace(function: ast.AST, old: ast.AST, new: ast.AST) -> None:
    for parent in ast.walk(function):
        for field, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, field, new)
            elif isinstance(value, list) and any(one is old for one in value):
                setattr(parent, field, [new if one is old else one for one in value])


def _statement(function: ast.AST, place: Place) -> tuple[list[ast.stmt], int]:
    """The innermost block with a statement that has the node, and the statement's index."""
    node = place.find(function)
    found: tuple[list[ast.stmt], int] | None = None
    for parent in _in_order(function):
        for _, value in ast.iter_fields(parent):
            if isinstance(value, list):
                for at, one in enumerate(value):
                    if isinstance(one, ast.stmt) and node in _in_order(one):
                        found = value, at
    if found is None:
        raise DoesNotApplyError(f"{place.kind} is in no statement")
    return found
