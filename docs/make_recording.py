"""Record the animation of the home page: python docs/make_recording.py (requires Chromium and playwright).

The terminal shows the real output of the commands. The page is the one that `clearhead view` writes.
"""

import io
import shlex
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

from make_screenshots import PICTURES, TEXT, opened_browser
from PIL import Image

RECORDING = PICTURES / "recording.webp"
WIDTH, HEIGHT = 960, 540
COMMANDS = [
    'clearhead translate "Where can I buy a ticket?"',
    'clearhead trace "The bridge was closed." --model all-MiniLM-L6-v2 --attention 0.2',
]
VIEW = f'clearhead view "{TEXT}" --open'
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


def record_page(recorder, path):
    """Open boxes and a step of the page, then scroll to the attention maps and the beams."""
    tab = recorder.tab
    tab.goto(path.as_uri())
    tab.wait_for_selector("html[data-ready=yes]")
    recorder.show(1800)
    tab.locator("#pipeline").evaluate("(part) => part.scrollIntoView()")
    recorder.show(1500)
    tab.locator(".box.attention").first.click()
    recorder.show(1500)
    step = tab.locator("details.step", has_text="softmax").first
    step.locator("summary").click()
    tab.locator(".cells[data-ready]").first.wait_for()
    step.evaluate("(part) => window.scrollTo(0, part.getBoundingClientRect().top + window.scrollY - 150)")
    recorder.show(3000)
    for name in ("#attention", "#beams"):
        tab.locator(name).evaluate("(part) => part.scrollIntoView()")
        tab.wait_for_timeout(300)
        recorder.show(2500)


def run(command):
    """Run a command and return its standard output."""
    words = [str(Path(sys.executable).with_name("clearhead")), *command[1:]]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def main():
    with tempfile.TemporaryDirectory() as folder, opened_browser() as browser:
        path = Path(folder) / "page.html"
        run(["clearhead", "view", TEXT, "--output", str(path)])
        recorder = Recorder(browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light"))
        recorder.tab.set_content(TERMINAL)
        lines = ""
        for command in COMMANDS:
            lines = type_command(recorder, lines, command, run(shlex.split(command)) + "\n")
        type_command(recorder, lines, VIEW, "")
        first = len(recorder.frames) - 1
        record_page(recorder, path)
        recorder.save(RECORDING, first)


if __name__ == "__main__":
    main()
