"""Record the animation of the README and the home page: python docs/make_recording.py (requires Chromium).

The terminal shows the real output of the command. The pages are those of `clearhead explore`.
"""

import io
import shlex
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

from make_screenshots import PICTURES, READY, opened_browser
from PIL import Image

from clearhead.export.web.export import export_web

RECORDING = PICTURES / "recording.webp"
WIDTH, HEIGHT = 960, 540
TRANSLATE = 'clearhead translate "Where can I buy a ticket?"'
EXPLORE = "clearhead explore --open"
SENTENCE = "I have not seen the cat."
CHAPTER = "#chapter-3"
TYPED = 6
"""Number of characters typed per frame."""

TERMINAL = """<style>
  body { margin: 0; background: #1b1f27; color: #e6e6e6; font: 17px/1.5 "DejaVu Sans Mono", monospace; }
  pre { margin: 24px 28px; font: inherit; white-space: pre-wrap; }
  b { color: #8fc7ff; font-weight: normal; }
</style><pre></pre>"""


class Recorder:
    """Screenshots of a browser tab and their durations."""

    def __init__(self, tab):
        self.tab, self.frames, self.milliseconds = tab, [], []

    def show(self, milliseconds):
        """Add a screenshot with its duration."""
        image = Image.open(io.BytesIO(self.tab.screenshot())).convert("RGB")
        self.frames.append(image)
        self.milliseconds.append(milliseconds)

    def save(self, path, first):
        """Save an endless animation that starts at frame `first`, which viewers without animation show."""
        image, *others = self.frames[first:] + self.frames[:first]
        durations = self.milliseconds[first:] + self.milliseconds[:first]
        image.save(path, save_all=True, append_images=others, duration=durations, loop=0, quality=70, method=6)


def type_command(recorder, before, command, output):
    """Type a command below the earlier lines, show its output, and return all lines."""
    for end in range(0, len(command) + TYPED, TYPED):
        write(recorder.tab, f"{before}<b>$</b> {escape(command[:end])}█")
        recorder.show(90)
    recorder.show(500)
    text = f"{before}<b>$</b> {escape(command)}\n{escape(output)}\n"
    write(recorder.tab, text)
    recorder.show(1800)
    return text


def write(tab, text):
    tab.locator("pre").evaluate("(terminal, text) => { terminal.innerHTML = text; }", text)


def record_explorer(recorder, folder):
    """Type a sentence, select two target tokens, and show the pictures below."""
    tab = recorder.tab
    tab.goto((folder / "index.html").as_uri())
    tab.wait_for_selector(READY)
    show_when_still(recorder, 1500)
    words = SENTENCE.split()
    for end in range(1, len(words) + 1):
        tab.locator("#text").fill(" ".join(words[:end]))
        tab.wait_for_selector(READY)
        show_when_still(recorder, 350)
    recorder.show(1000)
    for token in ("Katze", "gesehen"):
        tab.locator("#token-lines").get_by_text(token, exact=True).click()
        show_when_still(recorder, 1800)
    for part in ("#attention-title", "#next-title", "#beams-title"):
        scroll_to(tab, part)
        show_when_still(recorder, 2200)


def record_lesson(recorder, folder):
    """Play the picture of one query and its keys."""
    tab = recorder.tab
    tab.goto((folder / "lesson.html").as_uri())
    tab.wait_for_selector(READY)
    scroll_to(tab, CHAPTER)
    show_when_still(recorder, 2500)
    picture = tab.locator(f"{CHAPTER} .picture")
    scroll_to(tab, f"{CHAPTER} .picture")
    step = picture.get_by_role("button", name="Step forward")
    for _ in range(14):
        step.click()
        show_when_still(recorder, 700)
    recorder.show(2500)


def scroll_to(tab, selector):
    tab.locator(selector).evaluate("(part) => window.scrollTo(0, part.getBoundingClientRect().top + scrollY - 16)")


def show_when_still(recorder, milliseconds):
    """Add a screenshot after the page's transitions."""
    recorder.tab.wait_for_timeout(400)
    recorder.show(milliseconds)


def run(command):
    """Run a command and return its standard output."""
    words = [str(Path(sys.executable).with_name("clearhead")), *command[1:]]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def main():
    with tempfile.TemporaryDirectory() as folder, opened_browser() as browser:
        pages = Path(folder) / "explorer"
        export_web("tatoeba-en-de", pages)
        recorder = Recorder(browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light"))
        recorder.tab.set_content(TERMINAL)
        lines = type_command(recorder, "", TRANSLATE, run(shlex.split(TRANSLATE)) + "\n")
        type_command(recorder, lines, EXPLORE, "")
        first = len(recorder.frames)
        record_explorer(recorder, pages)
        record_lesson(recorder, pages)
        recorder.save(RECORDING, first)


if __name__ == "__main__":
    main()
