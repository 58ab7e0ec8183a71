"""The report of a stream: one file, nothing fetched, and everything a person needs to judge it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from PIL import Image as Pillow

from helpers.streams import stream
from unseen import LabelSpace, Session, Verdict, detectors, threshold
from unseen.images.decode import jpeg_thumbnail
from unseen.report import charts, render
from unseen.report.stream_page import (
    NUMBERS,
    Gallery,
    StreamLog,
    Thumbnail,
    page,
    tiles,
    write,
)
from unseen.verdicts import VERDICTS


def streamed(labels: LabelSpace, count: int = 300) -> tuple[StreamLog, Session]:
    session, log = Session(detectors.make("default", labels), threshold.Adaptive(warmup=64)), StreamLog()
    jpeg = jpeg_thumbnail(Pillow.new("RGB", (300, 200), "orange"), 224)
    for start, z in enumerate(stream(labels, count).split(50)):
        log.add([f"photos/{start}-{i}.jpg" for i in range(len(z))], session.observe(z), [jpeg] * len(z))
    return log, session


def test_the_page_is_whole_and_fetches_nothing(labels: LabelSpace) -> None:
    log, session = streamed(labels)
    log.skipped.append(("photos/<b>.png", "empty & broken"))
    html = page(log, session, title="unseen <detect>")
    tags = [re.findall(rf"<{end}(\w+)", re.sub(r"<(meta|img|hr)\b|<[^>]*/>", "", html)) for end in ("", "/")]
    assert Counter(tags[0]) == Counter(tags[1])  # every element that is opened is closed
    assert not re.search(r"(src|href)=\"(?!data:)|url\(|@import|<script|https?://", html)
    assert "unseen &lt;detect&gt;" in html
    assert "photos/&lt;b&gt;.png" in html
    assert "empty &amp; broken" in html
    assert "prefers-color-scheme: dark" in html
    assert html.count("<svg") == 2


def test_both_galleries_show_their_ends_sorted_by_margin(labels: LabelSpace) -> None:
    log, session = streamed(labels, 1200)
    gallery = log.galleries["unknown"]
    gallery.count += NUMBERS.all  # of a longer stream
    html = page(log, session, title="t")
    rejected = html[html.index("<h2>Unknown") : html.index("<h2>Label space")]
    assert "The first and the last 36 of" in rejected
    margins = [float(text) for text in re.findall(r"<span>([-\d.]+) &lt; ", rejected)]
    assert len(margins) == 2 * NUMBERS.shown
    assert margins == sorted(margins, reverse=True)


def test_a_gallery_stays_small_and_keeps_both_ends() -> None:
    gallery = Gallery("Known", "note")
    order = torch.randperm(5000, generator=torch.Generator().manual_seed(0)).tolist()
    for margin in order:
        gallery.add(Thumbnail(str(margin), Verdict("known", "cat", float(margin), 0.9, "cat", 0.0), None))
    assert len(gallery.thumbnails) <= NUMBERS.all
    _, _, count, (highest, lowest) = gallery.shown()
    assert count == 5000
    assert [one.verdict.margin for one in highest] == [4999.0 - i for i in range(NUMBERS.shown)]
    assert [one.verdict.margin for one in lowest] == [NUMBERS.shown - 1.0 - i for i in range(NUMBERS.shown)]


@pytest.mark.parametrize(
    ("key", "verdict", "caption"),
    [
        (
            "a/b.jpg",
            Verdict("known", "cat", 2.0, 0.93, "cat", -0.001),
            "<b>cat</b><span>p_known 93 %</span><span>2.00 ≥ 0.00</span><span>b.jpg</span>",
        ),
        ("d.jpg", Verdict("doubtful", "cat", 2.0, 0.31, "cat", 0.4), "<b>cat?</b><span>p_known 31 %</span>"),
        (
            "c.jpg",
            Verdict("unknown", None, -2.0, 0.25, "cat", 0.4, likely="lynx"),
            "<b>near cat</b><span>or: lynx</span><span>p_known 25 %</span><span>-2.00 &lt; 0.40</span>",
        ),
    ],
)
def test_a_caption_has_verdict_and_probability_and_no_negative_zero(key: str, verdict: Verdict, caption: str) -> None:
    text = render("stream.html", margins=None, galleries=[("", "", 1, [[Thumbnail(key, verdict, None)]])])
    assert caption in re.sub(r">\s+<", "><", text)


def test_the_page_counts_verdicts_and_says_what_share_the_threshold_keeps(labels: LabelSpace) -> None:
    log, session = streamed(labels)
    found = dict(tiles(log, session))
    assert {word: int(found[word]) for word in VERDICTS} == log.verdicts.counts
    low, high = session.recall_interval
    assert found["% of known kept, likely"] == f"{100 * low:.0f} to {100 * high:.0f}"


def test_an_empty_stream_makes_a_page(tmp_path: Path, labels: LabelSpace) -> None:
    path = tmp_path / "deep" / "out.html"
    write(path, StreamLog(skipped=[("a", "b")]), Session(detectors.make("default", labels)), title="t")
    assert "No image could be read" in path.read_text()


def test_a_histogram_stacks_the_three_verdicts_and_misses_no_image() -> None:
    margin, words = (
        torch.tensor([-3.0, -3.0, 0.2, 0.2, 0.2, 4.0]),
        ["unknown"] * 2 + ["doubtful", "known", "known", "known"],
    )
    chart = charts.histogram(margin, words, 0.0)
    tall = {kind: sum(bar[4] for bar in chart.bars if bar[0] == kind) for kind in VERDICTS}
    assert [round(tall[kind] / tall["doubtful"]) for kind in VERDICTS] == [3, 1, 2]
    (doubtful,) = (bar for bar in chart.bars if bar[0] == "doubtful")
    assert any(bar[0] == "known" and bar[2] + bar[4] == pytest.approx(doubtful[2], abs=0.2) for bar in chart.bars)


@pytest.mark.parametrize("values", [[0.0], [2.5, 2.5], [-1e6, 1e6], [0.001, 0.002, 0.003]])
def test_charts_draw_any_range(values: list[float]) -> None:
    margin = torch.tensor(values)
    words = [VERDICTS[i % 3] for i in range(len(values))]
    for one in (charts.histogram(margin, words, 0.0), charts.track(margin, words, torch.zeros_like(margin))):
        across = [bar[1] for bar in one.bars] + [dot[1] for dot in one.dots] + [x for x, _ in one.ticks]
        assert across
        assert all(-1 <= x <= one.width for x in across)


def test_the_threshold_is_drawn_as_each_image_met_it() -> None:
    margin, limit = torch.zeros(50), torch.cat([torch.full((25,), 9.0), torch.zeros(25)])
    chart = charts.track(margin, ["unknown"] * 25 + ["known"] * 25, limit)
    assert len({point.split(",")[1] for point in chart.lines[0][1].split()}) == 2  # two heights, and no slope
    assert not any("clipped" in dot[0] for dot in chart.dots)
