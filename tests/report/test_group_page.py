"""The page about groups: what it holds, and in a real Chromium its keys, its table and what leaves it."""

from __future__ import annotations

import json
import re
import shutil
from urllib.parse import unquote

import pytest

from unseen import Session, demo
from unseen.discover import group
from unseen.report import group_page

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@pytest.fixture(scope="module")
def found():
    pack = demo.load()
    pack = pack.shuffled(0)[:200]
    session = Session(pack.space.with_negatives(200))
    session.observe(pack.z, ["</script>.jpg", *pack.keys[1:]])
    return group(session)


@pytest.fixture(scope="module")
def report(found, tmp_path_factory):
    path = tmp_path_factory.mktemp("groups") / "groups.html"
    group_page.write(path, found, title="groups", state="my state.safetensors")
    return path


def test_every_kept_image_is_in_the_table_known_ones_too(found, report):
    (text,) = re.findall(r'id="kept"[^>]*>(.*?)</script>', report.read_text(encoding="utf-8"))
    images = found.session.reservoir.images
    rows = json.loads(text)
    assert [row[0] for row in rows] == images.names()
    assert [row[1] != "unknown" for row in rows] == images.known.tolist()
    assert rows[0][0] == "</script>.jpg"


@pytest.fixture(scope="module")
def browser(report):
    webdriver = pytest.importorskip("selenium.webdriver", reason="the page is tested where selenium is installed")
    if not (CHROMIUM and DRIVER):
        pytest.skip("needs chromium and chromedriver (Debian: chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{flag}")
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    driver.get(report.as_uri())
    yield driver
    driver.quit()


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_keys_name_and_dismiss_groups_and_corrections_leave_as_commands_and_csv(browser, found):
    first, second, *_ = browser.find_elements("css selector", "article")
    first.send_keys("1")
    first.send_keys("j")
    assert browser.switch_to.active_element == second, browser.get_log("browser")
    second.send_keys("d")
    browser.find_element("id", "review-kind").send_keys("known")
    field = browser.find_element("css selector", "#review-rows input")
    field.send_keys("a llama")
    browser.find_element("css selector", "#groups [data-key]").send_keys("digit")
    browser.find_element("id", "review-find").send_keys("llama")  # what is drawn anew keeps its word
    assert browser.find_element("css selector", "#review-rows input").get_attribute("value") == "a llama"
    browser.find_element("id", "export").click()
    word = found.groups[0].suggestions[0].word
    commands = browser.find_element("css selector", "#out pre").text.splitlines()
    assert sorted(commands) == sorted(
        [
            f"unseen promote {first.get_attribute('data-number')} '{word}' --state 'my state.safetensors'",
            f"unseen dismiss {second.get_attribute('data-number')} --state 'my state.safetensors'",
            "unseen review --corrections corrections.csv --state 'my state.safetensors'",
        ]
    )
    rows = unquote(browser.find_element("id", "csv").get_attribute("href")).split(",", 1)[1].splitlines()
    assert rows[0] == '"key","name"'
    assert [row.split(",")[1] for row in rows[1:]] == ['"a llama"', '"digit"']
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
