"""What the tests of the page share."""

import pytest
from support.page import TEXT

from clearhead.inspection.report import collect
from clearhead.inspection.report.html import write


@pytest.fixture(scope="session")
def translation():
    return collect.of_text("tatoeba-en-de", TEXT)


@pytest.fixture
def opened(browser, tmp_path):
    """Opens a page from disk; in the end there was no error, and no request but for the file."""
    contexts, said = [], []

    def open_(data, width=1100, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **({"color_scheme": "light"} | options))
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url) if not request.url.endswith("page.html") else None)
        write(data, tmp_path / "page.html")
        page.goto((tmp_path / "page.html").as_uri())
        page.wait_for_selector("html[data-ready=yes]")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert said == []
