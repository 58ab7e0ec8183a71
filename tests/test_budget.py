"""What tools/budget.py counts, and when it fails."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import budget

FILE = '''"""A docstring
of two lines."""

# a comment
LIMIT = 5
NAMES = ("a", "b")
TEXT = """
# not a comment
"""


@dataclass(frozen=True)
class Home:
    """What numbers live in."""

    share: float = 0.5


class Other:
    rate = [1.5, 2]

    def work(self, most=7):
        return most + 1  # which is code
'''


def test_docstrings_comments_and_blank_lines_are_no_code_and_texts_are():
    assert budget.code_lines(FILE, ast.parse(FILE)) == 2 + 3 + 3 + 4


def test_a_number_in_a_frozen_class_or_a_signature_has_a_home():
    assert list(budget.constants(ast.parse(FILE))) == ["LIMIT", "rate"]


@pytest.mark.parametrize(
    ("due", "value", "told"),
    [
        ("", 10, "met"),
        ("", 15, "under what is in force"),
        ("", 21, "TOO MUCH"),
        ("31", 20, "due in issue 31"),
        ("31", 21, "due in issue 31, and grown"),
    ],
)
def test_a_budget_says_where_a_count_stands(due: str, value: int, told: str):
    assert budget.state(budget.Budget("serve", "lines", in_force=20, target=10, due=due), value) == told
