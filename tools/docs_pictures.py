"""Make what the docs show of `unseen demo`: pictures of its report, and lines that it prints.

python tools/docs_pictures.py            # needs chromium; writes docs/images and lines of three pages
python tools/docs_pictures.py --lines    # the lines alone
"""

import io
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageFilter

from unseen import Session, demo
from unseen.cli.output import verdict_line
from unseen.images.decode import jpeg_thumbnail
from unseen.report import stream_page

REPO = Path(__file__).parents[1]
IMAGES = REPO / "docs" / "images"
PAGES = (REPO / "README.md", REPO / "docs" / "index.md", REPO / "docs" / "quickstart.md")
LINE = re.compile(r"^    (\w[\w -]*/\d{5}) +(?:known|doubtful|unknown) .*$", re.M)
WIDTH, COLOURS = 1160, 256


def demo_lines() -> dict[str, str]:
    """What the demo prints of each image, by key."""
    pack = demo.load()
    pack = pack.shuffled(0)
    records = Session(pack.space).observe(pack.z).records(pack.keys)
    return {record["key"]: verdict_line(record) for record in records}


def with_lines(page: str, lines: dict[str, str]) -> str:
    """A page whose lines of the demo are as it prints them now."""
    return LINE.sub(lambda found: f"    {lines[found[1]]}", page)


def screenshot(page: Path, picture: Path, height: int) -> Image.Image:
    """A page as a browser draws it in a window of some height."""
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
    browser += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    browser += [f"--user-data-dir={picture.parent / 'browser'}"]
    subprocess.run(
        [*browser, f"--window-size={WIDTH},{height}", f"--screenshot={picture}", page.as_uri()],
        check=True,
        capture_output=True,
    )
    return Image.open(picture).convert("RGB")


def save(picture: Image.Image, name: str) -> None:
    """Write a picture with few colours, which makes it a small file."""
    picture.quantize(COLOURS, kmeans=2).save(IMAGES / name, optimize=True)
    print(name, f"{(IMAGES / name).stat().st_size / 1024:.0f} kB")


def draw() -> None:
    """Run the demo, save parts of its reports, and the groups on the page of the service."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "demo.html"
        subprocess.run([sys.executable, "-m", "unseen", "demo", "--report", report], check=True, capture_output=True)
        save(screenshot(report, Path(folder) / "demo.png", 1030), "report.png")
        report.write_text(section(report.read_text(encoding="utf-8"), "<h2>Unknown"), encoding="utf-8")
        save(screenshot(report, Path(folder) / "unknown.png", 480), "gallery.png")
        draw_regions(report)
        discover = [sys.executable, "-m", "unseen", "demo", "--discover", "--report", report]
        subprocess.run(discover, check=True, capture_output=True)
        save(screenshot(report, Path(folder) / "groups.png", 800), "groups.png")
        draw_service(Path(folder))


def draw_service(folder: Path) -> None:
    """Save the groups on the page of a service that has the demo as a stream."""
    from selenium import webdriver
    from selenium.webdriver.support.ui import WebDriverWait

    serve = [sys.executable, "-m", "unseen", "serve", "--demo", "--port", "0", "--data", folder / "data"]
    with subprocess.Popen([*serve, "--encoder", "none"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        url = next(word for word in process.stderr.readline().split() if word.startswith("http"))
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=980,1000"):
            options.add_argument(f"--{flag}")
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
        try:
            driver.get(url)
            wait = WebDriverWait(driver, 120)
            wait.until(lambda at: int(at.find_element("id", "unknown").text.replace(",", "") or 0) > 200)
            driver.find_element("tag name", "body").send_keys("pg")  # pauses, and groups what has come
            wait.until(lambda at: len(at.find_elements("css selector", "#groups[aria-busy=false] li img")) > 50)
            driver.find_element("id", "groups-title").find_element("xpath", "..").screenshot(str(folder / "page.png"))
            picture = Image.open(folder / "page.png").convert("RGB")
            save(picture.crop((0, 0, picture.width, min(picture.height, 880))), "page-groups.png")
        finally:
            driver.quit()
            process.terminate()


def draw_regions(page: Path) -> None:
    """Save how boxes are drawn, by way of a page."""
    page.write_text(section(regions_page(), "<h2>Photos"), encoding="utf-8")
    save(screenshot(page, page.with_name("regions.png"), 680), "regions.png")


def regions_page() -> str:
    """A report on scenes of the demo's images, judged from their stored vectors: four or five on a blurred one."""
    draw, pack = random.Random(0), demo.load().shuffled(0)
    session, log = Session(pack.space), stream_page.StreamLog()
    verdicts = session.observe(pack.z)
    log.add(pack.keys, verdicts, pack.thumbnails)
    photos = []
    for first in range(600, 640, 5):
        pictures = [Image.open(io.BytesIO(jpeg)).convert("RGB") for jpeg in pack.thumbnails[first : first + 5]]
        scene = pictures[0].resize((384, 288)).filter(ImageFilter.GaussianBlur(24))
        cells = draw.sample([(x, y) for x in (16, 144, 272) for y in (24, 168)], 4 + first % 2)
        regions = []
        for i, (x, y) in enumerate(cells):
            scene.paste(pictures[i].resize((96, 96)), (x, y))
            one, box = verdicts[first + i], (x, y, x + 96, y + 96)
            regions.append(stream_page.MarkedRegion(box, one.verdict, one.nearest, pack.keys[first + i]))
        photos.append(
            stream_page.MarkedPhoto(f"scenes/{len(photos)}.png", jpeg_thumbnail(scene, 384), scene.size, regions)
        )
    log.photos = photos
    return stream_page.page(log, session, title="regions")


def section(page: str, title: str) -> str:
    """A page with one of its sections alone."""
    start = page.index(title)
    return page[: page.index("<body>") + len("<body>")] + page[start : page.index("<h2>", start + 1)]


def main() -> None:
    """Bring the pages, and unless told otherwise the pictures, up to date."""
    lines = demo_lines()
    for page in PAGES:
        page.write_text(with_lines(page.read_text(encoding="utf-8"), lines), encoding="utf-8")
    if "--lines" not in sys.argv:
        draw()


if __name__ == "__main__":
    main()
