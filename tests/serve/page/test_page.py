"""The page in a real Chromium: it lives, works by keyboard, fits a phone, and calls nobody else."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from helpers.service import LABELS, Client, Rounding, create, serving
from helpers.tiny_text import GatedText
from unseen.verdicts import VERDICTS

webdriver = pytest.importorskip("selenium.webdriver", reason="the page is tested where selenium is installed")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver (Debian: chromium-driver)"),
    pytest.mark.timing,
]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    data = tmp_path_factory.mktemp("page")
    run = [sys.executable, "-c", "from unseen.cli import main; main()"]
    command = [*run, "serve", "--demo", "--port", "0", "--data", data / "data", "--encoder", "none"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        line = process.stderr.readline()
        assert "http://" in line, line
        yield line.split()[2]
        process.terminate()


@pytest.fixture(scope="module")
def browser(url):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1280,1000"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.get(url)
    until(lambda: text(driver, "seen") not in ("", "0"))
    yield driver
    driver.quit()


@pytest.fixture
def own(browser, tmp_path):
    """A stream of a service with an encoder, which is on the page."""
    with serving(tmp_path / "data", Rounding(LABELS.dim)) as url, Client(url) as client:
        remote = create(client)
        browser.get(url)
        until(lambda: text(browser, "live") == "live")
        yield remote
        browser.get("about:blank")


def until(true, seconds=30):
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        if true():
            return
        time.sleep(0.1)
    raise TimeoutError


def text(driver, name):
    return driver.find_element("id", name).text


def number(driver, name):
    return int(text(driver, name).replace(",", ""))


def share(driver):
    return int(re.search(r"\((\d+) %\)", text(driver, "accepted"))[1])


def found(driver, selector):
    return driver.find_elements("css selector", selector)


def wide(driver):
    """By how much the page is wider than the window."""
    return driver.execute_script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")


@contextmanager
def phone(driver):
    size = {"width": 375, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    yield
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_verdicts_thumbnails_and_curves_update_while_the_page_is_open(browser):
    until(lambda: len(found(browser, "#verdicts li")) > 20)
    before = number(browser, "seen")
    until(lambda: number(browser, "seen") > before)
    assert text(browser, "live") == "live"
    counts = browser.execute_script(
        "return ['known', 'unknown', 'seen'].map(id => document.getElementById(id).textContent)"
    )
    known, unknown, seen = (int(count.replace(",", "")) for count in counts)
    assert known + unknown == seen
    assert len(found(browser, "#labels tr")) == 6
    assert "bird, cat, deer, dog, frog, horse" in text(browser, "knows")
    cards = "return [...document.querySelectorAll('#verdicts li:not(.is-known)')].map(item => item.textContent)"
    until(lambda: browser.execute_script(cards))
    assert all("or: " in card for card in browser.execute_script(cards))
    shown = "return [...document.querySelectorAll('#verdicts li img')].filter(i => i.complete && i.naturalWidth).length"
    until(lambda: browser.execute_script(shown) > 12)
    assert not found(browser, "#verdicts .none")


KINDS = """
const done = arguments[0], list = document.getElementById("verdicts");
import("/cards.js").then(({ called }) => done(["known", "doubtful", "unknown"].map((verdict) => {
  const item = Object.assign(document.createElement("li"), { className: `is-${verdict}` });
  list.append(item);
  const color = getComputedStyle(item).borderColor;
  item.remove();
  return [called({ verdict, name: verdict === "unknown" ? null : "cat" }), color];
})));
"""


def test_a_doubtful_verdict_has_a_question_mark_and_a_colour_of_its_own(browser):
    words, colours = zip(*browser.execute_async_script(KINDS), strict=True)
    assert words == ("cat", "cat?", "unknown")
    assert len(set(colours)) == 3
    assert "doubtful" in browser.find_element("id", "review-filter").text


def test_the_p_key_pauses_the_page_and_resumes_with_what_arrived_meanwhile(browser):
    body = browser.find_element("tag name", "body")
    first = "return document.querySelector('#verdicts li').id"
    body.send_keys("p")
    assert browser.find_element("id", "pause").get_attribute("aria-pressed") == "true"
    time.sleep(1)  # what was on its way has arrived
    held = browser.execute_script(first)
    time.sleep(1)  # more than one batch of the demo
    assert browser.execute_script(first) == held
    body.send_keys("p")
    until(lambda: browser.execute_script(first) != held)


def test_the_threshold_moves_by_keyboard_and_shows_how_many_would_be_known(browser):
    browser.execute_script("document.getElementById('threshold').focus()")
    browser.switch_to.active_element.send_keys("\ue010")  # End
    assert share(browser) < 10  # a sample may arrive between the key and the look
    browser.switch_to.active_element.send_keys("\ue011")  # Home
    assert share(browser) > 90
    browser.find_element("id", "follow").click()
    assert not browser.find_element("id", "follow").is_displayed()
    before = text(browser, "threshold-value")
    histogram = browser.find_element("id", "histogram")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", histogram)
    actions = webdriver.ActionChains(browser)
    actions.move_to_element_with_offset(histogram, -80, 0).click_and_hold().move_by_offset(40, 0).release().perform()
    assert text(browser, "threshold-value") != before
    browser.find_element("id", "follow").click()


def click(browser, selector):
    """Click in the page itself: an element found from here may be redrawn before the click arrives."""
    browser.execute_script("document.querySelector(arguments[0]).click()", selector)


def test_snapshots_can_be_taken_and_restored(browser):
    click(browser, "#take")
    until(lambda: found(browser, "#snapshots li button"))
    later = number(browser, "seen") + 40
    until(lambda: number(browser, "seen") > later)
    click(browser, "#snapshots li button")
    until(lambda: number(browser, "seen") < later)
    assert not browser.find_element("id", "notice").is_displayed()


def test_an_error_of_the_api_is_shown_on_the_page(browser):
    browser.find_element("id", "new").click()
    browser.find_element("id", "create-names").send_keys("cat\ndog")
    browser.find_element("id", "create-go").click()
    until(lambda: browser.find_element("id", "notice").is_displayed())
    assert "--encoder" in text(browser, "notice")


def test_every_control_is_reached_by_tab_and_has_a_name(browser):
    unnamed = browser.execute_script(
        "return [...document.querySelectorAll('button, input, select, textarea, a')].filter(e => !(e.labels?.length ||"
        " e.textContent.trim() || e.ariaLabel)).map(e => e.id)"
    )
    assert unnamed == []
    browser.execute_script("document.querySelector('.skip').focus()")
    reached = set()
    for _ in range(14):
        webdriver.ActionChains(browser).send_keys("\ue004").perform()
        reached.add(browser.execute_script("return document.activeElement.id"))
    assert {"stream", "new", "files", "folder", "learn", "threshold"} <= reached


def test_the_page_has_a_dark_theme_and_fits_a_phone(browser):
    media = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(16, 20, 27)"
    with phone(browser):
        assert wide(browser) <= 0
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


DROP = """
const [count, done] = arguments, canvas = document.createElement("canvas");
canvas.getContext("2d").fillRect(0, 0, 20, 20);
canvas.toBlob((data) => {
  const moved = new DataTransfer();
  for (let i = 0; i < count; i++) moved.items.add(new File([data], `photo ${i}.png`, { type: "image/png" }));
  moved.items.add(new File([], "empty.png", { type: "image/png" }));
  document.dispatchEvent(new DragEvent("drop", { dataTransfer: moved, cancelable: true }));
  done();
});
"""


def test_dropped_photos_are_observed_or_scored_and_an_empty_one_is_named(browser, own):
    browser.execute_async_script(DROP, 149)
    until(lambda: text(browser, "skipped-names") == "empty.png: empty file")
    until(lambda: own.info()["seq"] == 149)
    until(lambda: number(browser, "seen") == 149)
    assert text(browser, "notice") == ""
    assert len(found(browser, "#verdicts img")) == 60
    with phone(browser):
        assert wide(browser) <= 0
    browser.find_element("id", "learn").click()
    browser.execute_async_script(DROP, 2)
    titles = "return [...document.querySelectorAll('#verdicts li')].map(item => item.title).join()"
    until(lambda: "photo 1.png\nsample not learned from" in browser.execute_script(titles))
    assert own.info()["seq"] == 149


SCENE = """
const done = arguments[0], canvas = Object.assign(document.createElement("canvas"), { width: 120, height: 80 });
const pen = canvas.getContext("2d");
for (const [colour, ...box] of [["#888", 0, 0, 120, 80], ["#d22", 10, 10, 30, 30], ["#22d", 60, 45, 30, 30]]) {
  pen.fillStyle = colour;
  pen.fillRect(...box);
}
const boxes = [[10, 10, 30, 30], [60, 45, 30, 30], [0, 0, 3, 3]].map((bbox) => ({ image_id: 7, bbox }));
const coco = { images: [{ id: 7, file_name: "somewhere/scene.png" }], annotations: boxes };
canvas.toBlob((data) => {
  const moved = new DataTransfer();
  moved.items.add(new File([data], "scene.png", { type: "image/png" }));
  moved.items.add(new File([JSON.stringify(coco)], "boxes.json", { type: "application/json" }));
  document.dispatchEvent(new DragEvent("drop", { dataTransfer: moved, cancelable: true }));
  done();
});
"""


def test_boxes_dropped_with_their_photo_are_judged_each_and_drawn_on_it(browser, own):
    browser.execute_async_script(SCENE)
    until(lambda: len(found(browser, "#scenes rect")) == 2)
    drawn = {f"is-{verdict}" for verdict in VERDICTS}
    assert {one.get_attribute("class") for one in found(browser, "#scenes g")} <= drawn
    titles = [one.get_attribute("textContent") for one in found(browser, "#scenes title")]
    assert [title.partition(":")[0] for title in titles] == ["scene.png#1", "scene.png#2"]
    assert text(browser, "skipped-names") == "scene.png#3: box empty, outside or too small"
    assert own.info()["seq"] == 2


def test_the_page_calls_no_other_host_and_keeps_its_content_policy(browser, url):
    browser.get(url)
    until(lambda: found(browser, "#verdicts img"))
    called = browser.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert called
    assert all(name.startswith((url, "blob:")) for name in called)
    browser.get(f"{url}/docs")
    until(lambda: len(found(browser, "#routes section")) > 10)
    with phone(browser):
        assert wide(browser) <= 0
    complaints = [line["message"] for line in browser.get_log("browser")]
    assert not [line for line in complaints if "Content Security Policy" in line]


def test_a_stream_in_the_making_shows_its_progress_and_a_deleted_one_that_it_ended(browser, tmp_path, monkeypatch):
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))
    encoder = GatedText()
    with serving(tmp_path / "data", encoder) as own, Client(own) as client:
        browser.get(own)
        browser.find_element("id", "new").click()
        browser.find_element("id", "create-name").send_keys("שלום " + 12 * "verylongname")
        browser.find_element("id", "create-names").send_keys("cat\nمرحبا بالعالم\n" + 40 * "long")
        browser.find_element("id", "create-go").click()
        until(lambda: re.search(r"encoding words [\d,]+ of", text(browser, "job-text")))
        encoder.gate.set()
        until(lambda: text(browser, "live") == "live")
        assert not browser.find_element("id", "job").is_displayed()
        assert wide(browser) <= 0
        client.stream(client.streams()[0]["id"]).delete()
        until(lambda: text(browser, "live") == "ended" and "deleted" in text(browser, "notice"))
        asked = "return performance.getEntriesByType('resource').length"
        before = browser.execute_script(asked)
        click(browser, "#take")  # gets a 404, which must not hide why
        until(lambda: browser.execute_script(asked) > before)
        time.sleep(0.3)  # the answer is shown after it is counted
        assert "deleted" in text(browser, "notice")
        browser.get("about:blank")


def test_a_group_is_explained_promoted_and_undone_by_keyboard(browser, url):
    keys, grouped = webdriver.Keys, '#groups[aria-busy="false"] li'  # and no request is about to replace them
    browser.get(url)
    until(lambda: number(browser, "unknown") > 40)
    until(lambda: found(browser, '#groups[aria-busy="false"]'))
    body = browser.find_element("tag name", "body")
    body.send_keys("p")
    body.send_keys("g")
    until(lambda: found(browser, grouped))
    browser.find_element("css selector", "#groups .look").send_keys(keys.ENTER)
    until(lambda: text(browser, "why-sentence").startswith(("unknown: ", "unknown, p")))
    until(lambda: found(browser, "#why-pictures .this img"))
    browser.find_element("id", "why-word").send_keys("a thing")
    browser.find_element("id", "why-save").send_keys(keys.ENTER)
    until(lambda: not browser.find_element("id", "why").is_displayed())
    browser.find_element("id", "verdicts").send_keys(keys.ARROW_RIGHT)
    browser.switch_to.active_element.send_keys(keys.ENTER)
    until(lambda: browser.find_element("id", "why").is_displayed())
    browser.switch_to.active_element.send_keys(keys.ESCAPE)
    browser.find_element("id", "review-load").send_keys(keys.ENTER)
    until(lambda: found(browser, "#review-rows tr"))
    browser.find_element("id", "review-filter").send_keys("corrected")
    until(lambda: "a thing (your word)" in text(browser, "review-rows"))
    until(lambda: found(browser, grouped))
    browser.find_element("css selector", "#groups .names button").send_keys(keys.ENTER)
    name = browser.find_element("css selector", "#groups input")
    wanted = name.get_attribute("value")
    name.send_keys(keys.ENTER)
    until(lambda: text(browser, "group-said").startswith(f"{wanted} is a known name now"))
    until(lambda: wanted in text(browser, "knows"))
    browser.find_element("id", "undo").send_keys(keys.ENTER)
    until(lambda: wanted not in text(browser, "knows"))
    assert not text(browser, "notice")
