"""mutmut, with the operators that matter: what a condition compares, and how conditions combine.

    python -m tests.mutants.operators run

Place: `pure` runs it in a copy of the tree. Without its operators for texts, numbers, arguments and
assignments a run takes minutes and not hours, and its survivors are about what the code decides.
"""

from typing import Any

import libcst
from mutmut.__main__ import cli
from mutmut.mutation import mutators

OPERATORS: Any = mutators.mutation_operators
OPERATORS[:] = [
    (libcst.BooleanOperation, mutators.operator_swap_op),  # and, or
    (libcst.ComparisonTarget, mutators.operator_swap_op),  # == !=, < <=, > >=
    (libcst.CSTNode, mutators.operator_keywords),  # is, in, break, continue
    (libcst.UnaryOperation, mutators.operator_remove_unary_ops),  # not
    (libcst.Name, mutators.operator_name),  # True, False
]

if __name__ == "__main__":
    cli()
