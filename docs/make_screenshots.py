"""Take the screenshots for the README: python docs/make_screenshots.py (requires Chromium and playwright)."""

import contextlib
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from clearhead.export.web.export import export_web
from clearhead.inspection.report import collect
from clearhead.inspection.report.html import write_page

TEXT = "My grandmother bakes bread every Sunday morning."
PICTURES = Path(__file__).with_name("images")
READY = "html[data-ready=yes]:not([data-busy])"
MARGIN = 16


def save_screenshot(page, name, selector):
    """Save one part of the page."""
    path = PICTURES / f"{name}.png"
    box = page.locator(selector).bounding_box()
    clip = {"x": box["x"] - MARGIN, "y": box["y"], "width": box["width"] + 2 * MARGIN, "height": box["height"]}
    page.screenshot(path=path, clip=clip)
    compress(path)


def compress(path):
    """Write a picture again in 256 colors, which takes fewer bytes without a visible difference."""
    Image.open(path).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


@contextlib.contextmanager
def opened_browser():
    """Open Chromium, and close it at the end."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        sys.exit("Chromium is not installed")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


def main():
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, opened_browser() as chromium:
        path = Path(folder) / "page.html"
        write_page(collect.collect_checkpoint("tatoeba-en-de", TEXT), path)
        page = chromium.new_page(viewport={"width": 1100, "height": 6000}, color_scheme="light")
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready=yes]")
        page.locator(".box.attention").first.click()
        page.locator("details.step", has_text="softmax").first.locator("summary").click()
        page.locator(".cells[data-ready]").first.wait_for()
        page.locator("#attention-view select").first.select_option("1")
        page.locator("h3", has_text="Cross-attention, layer 1").wait_for()
        save_screenshot(page, "pipeline", "#pipeline")
        save_screenshot(page, "attention", "#attention")
        save_screenshot(page, "beams", "#beams")
        save_explorer(chromium, Path(folder))


def save_explorer(chromium, folder):
    """Save the upper part of the explorer's page, and one chapter of the lesson."""
    export_web("tatoeba-en-de", folder / "explorer")
    page = chromium.new_page(viewport={"width": 1100, "height": 1110}, color_scheme="light")
    page.goto((folder / "explorer" / "index.html").as_uri())
    page.wait_for_selector(READY)
    page.wait_for_timeout(500)  # the lines move
    page.screenshot(path=PICTURES / "explorer.png")
    compress(PICTURES / "explorer.png")
    page = chromium.new_page(viewport={"width": 1100, "height": 9000}, color_scheme="light")
    page.goto((folder / "explorer" / "lesson.html").as_uri())
    page.wait_for_selector(READY)
    page.wait_for_timeout(500)
    save_screenshot(page, "lesson", "#chapter-3")


if __name__ == "__main__":
    main()
