"""The compilers that the token constraint port's contract is held against, over the toy model's byte tokens."""

from collections.abc import Callable
from concurrent.futures import Executor

from adapters.llguidance.compiler import LlguidanceCompiler
from application.ports.token_constraint import ConstraintCompiler
from tests.support.text.toy_constraints import FakeCompiler

COMPILERS: dict[str, Callable[[Executor], ConstraintCompiler]] = {
    "fake": lambda workers: FakeCompiler(workers),
    "llguidance": lambda workers: LlguidanceCompiler(workers),
}
