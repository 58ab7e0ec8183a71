"""What tools/budget.py counts, and when it fails."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

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
