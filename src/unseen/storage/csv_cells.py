"""Cells of a CSV that a spreadsheet takes for text: one that begins with = + - @ would be a formula."""

from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r")


def as_text_cell(value: Any) -> Any:
    """Text that could be a formula behind an apostrophe, anything else as it is.

    >>> as_text_cell('=HYPERLINK("x")'), as_text_cell("cat.jpg"), as_text_cell(-1.5)
    ('\\'=HYPERLINK("x")', 'cat.jpg', -1.5)
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def of_text_cell(text: str) -> str:
    """What `as_text_cell` was given.

    >>> of_text_cell("'=1"), of_text_cell("'tis.jpg")
    ('=1', "'tis.jpg")
    """
    return text[1:] if text.startswith("'") and text[1:].startswith(FORMULA) else text
