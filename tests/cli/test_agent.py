"""unseen mcp: the tools as an agent calls them, and the fence around --root."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import pytest

from helpers.commands import rows, run
from helpers.tiny_models import pictures, save_clip
from unseen.cli import agent
from unseen.errors import SettingError

mcp = pytest.importorskip("mcp", reason="needs the extra mcp")


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "root" / "photos").mkdir(parents=True)
    for number, image in enumerate(pictures(6)):
        image.pixels.save(tmp_path / "root" / "photos" / f"{number}.png")
    (tmp_path / "secret.png").write_bytes((tmp_path / "root" / "photos" / "0.png").read_bytes())
    return (tmp_path / "root").resolve()


def test_an_agent_detects_explains_and_groups_over_stdio(root, tmp_path):
    clip = save_clip(tmp_path / "clip")
    made = ["--label", "cat", "--label", "dog", "--encoder", clip, "--state", root / "state.safetensors"]
    run("detect", root / "photos", *made)
    words = ["-m", "unseen", "mcp", "--root", str(root)]

    async def talk() -> list:
        parameters = mcp.StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))
        async with mcp.Client(parameters) as client:
            tools = [tool.name for tool in (await client.list_tools()).tools]
            asked = [
                ("detect", {"photos": "photos", "names": ["cat", "dog"]}),
                ("explain", {"photo": "photos/0.png"}),
                ("detect", {"photos": "../secret.png", "names": []}),
            ]
            return [tools, *[await client.call_tool(name, given) for name, given in asked]]

    tools, judged, why, outside = asyncio.run(talk())
    assert tools == ["detect", "explain", "group", "promote"]
    found = json.loads(judged.content[0].text)
    assert len(found["verdicts"]) == 6
    assert "nearest" in why.content[0].text
    assert outside.is_error
    assert "expected a path below" in outside.content[0].text


@pytest.mark.parametrize(
    "path", ["..", "/etc", "../secret.png", "photos/../../secret.png", "link/secret.png", "list.txt", "photos"]
)
def test_nothing_outside_is_reached(root, path):
    (root / "link").symlink_to(root.parent)
    (root / "photos" / "out.png").symlink_to(root.parent / "secret.png")
    (root / "list.txt").write_text(str(root.parent / "secret.png"))
    with pytest.raises(SettingError, match=r"expected a (path below|folder or a photo)"):
        agent.photos_below(root, path)


def test_the_tools_are_listed(root):
    assert [row["tool"] for row in rows(run("mcp", "--root", root, "--json"))][:2] == ["detect", "explain"]
    with pytest.raises(SettingError, match="expected a folder for --root"):
        run("mcp", "--root", root / "nowhere")
