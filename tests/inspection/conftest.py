"""Fixtures for tests of the page."""

import pytest
from support.pages.page import TEXT

from clearhead.inspection.report import collect
from clearhead.inspection.report.html import write_page


@pytest.fixture(scope="session")
def translation():
    return collect.collect_checkpoint("tatoeba-en-de", TEXT)


@pytest.fixture
def opened(browser, tmp_path):
    """Open a page from disk; fail if the console has a message or the page requests anything else."""
    contexts, messages = [], []

    def open_page(data, width=1100, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **({"color_scheme": "light"} | options))
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on(
            "request", lambda request: messages.append(request.url) if not request.url.endswith("page.html") else None
        )
        write_page(data, tmp_path / "page.html")
        page.goto((tmp_path / "page.html").as_uri())
        page.wait_for_selector("html[data-ready=yes]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert messages == []
