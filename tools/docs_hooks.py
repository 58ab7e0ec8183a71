"""What mkdocs does besides: pages from the root of the tree, and links to source files, which are not in it."""

import posixpath
import re
from typing import Any

from mkdocs.structure.files import File, Files

PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie in the root of the tree."""
    for source, page in PAGES.items():
        with open(source, encoding="utf-8") as file:
            files.append(File.generated(config, page, content=file.read()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A page whose links into the source tree are names of files."""
    return LINK.sub(lambda found: _link(page.file.src_uri, *found.groups()), markdown)


def _link(page: str, words: str, target: str, anchor: str | None) -> str:
    """A link for the site: a page of it, or the path of a source file."""
    home = "" if page in PAGES.values() else posixpath.join("docs", posixpath.dirname(page))
    path = posixpath.normpath(posixpath.join(home, target))
    if path in PAGES:
        return f"[{words}]({_relative(PAGES[path], page)}{anchor or ''})"
    if path.startswith("docs/"):
        return f"[{words}]({_relative(path.removeprefix('docs/'), page)}{anchor or ''})"
    return words if path in words or words.startswith("`") else f"{words} (`{path}`)"


def _relative(target: str, page: str) -> str:
    return posixpath.relpath(target, posixpath.dirname(page) or ".")
