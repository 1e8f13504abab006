"""Web pages of the server in a real browser."""

import re

import httpx
import pytest
from support import served

pytestmark = pytest.mark.slow

KEY = "a-key-of-sixteen-and-more"


@pytest.fixture(scope="module")
def addresses(tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(KEY)
    models = ["-m", "tatoeba-en-de", "-m", "all-MiniLM-L6-v2"]
    with served.command(*models) as free, served.command(*models, "--api-key-file", keys) as guarded:
        yield free.address, guarded.address


@pytest.fixture
def page(browser):
    """A page that must log no errors and connect only to the server."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    page, messages, urls = context.new_page(), [], []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: urls.append(request.url))
    yield page
    context.close()
    assert [one for one in messages if "401" not in one and "400" not in one] == []
    assert all(re.match(r"http://127\.0\.0\.1:|about:srcdoc|data:", one) for one in urls), urls


def shown(page, text, model=None):
    page.locator("#text").fill(text)
    if model:
        page.locator("#model").select_option(model)
    page.locator("button[type=submit]").click()
    frame = page.frame_locator("#view")
    frame.locator("html[data-ready=yes] h1", has_text=text).wait_for(state="attached", timeout=30_000)
    return frame


def test_home_page_shows_the_report_of_a_translation(addresses, page):
    page.goto(addresses[0])
    page.locator("html[data-ready=yes]").wait_for(state="attached")
    assert page.locator("#model option").all_inner_texts() == ["tatoeba-en-de", "all-MiniLM-L6-v2"]
    frame = shown(page, "It is raining.")
    assert frame.locator("#output").inner_text() == "Es regnet."
    frame.locator(".box.attention").first.click()
    frame.locator("details.step summary").first.click()
    frame.locator("details.step math").first.wait_for(state="attached")
    frame = shown(page, "<script>document.title='hacked'</script>", "all-MiniLM-L6-v2")
    assert frame.locator("h1").inner_text() == "<script>document.title='hacked'</script>"
    assert page.title() == "Clearhead"


def test_home_page_shows_errors_and_requests_a_key(addresses, page):
    page.goto(addresses[1])
    page.locator("#key-row").wait_for()
    assert "API key" in page.locator("#message").inner_text()
    page.locator("#key").fill(KEY)
    page.locator("#key").press("Tab")
    page.locator("html[data-ready=yes]").wait_for(state="attached")
    assert shown(page, "It is raining.").locator("#output").inner_text() == "Es regnet."
    page.locator("#text").fill("word " * 399)
    page.locator("#model").select_option("all-MiniLM-L6-v2")
    page.locator("button[type=submit]").click()
    page.locator("#message", has_text="takes at most 256").wait_for()


def test_docs_page_lists_the_api(addresses, page):
    page.goto(f"{addresses[0]}/docs")
    page.locator("html[data-ready=yes]").wait_for(state="attached")
    summaries = page.locator("summary code").all_inner_texts()
    for path in ("POST /v1/embeddings", "POST /translate", "GET /metrics", "POST /view"):
        assert path in summaries
    page.locator("details", has_text="/v1/embeddings").locator("summary").click()
    assert page.locator("th", has_text="encoding_format").first.is_visible()


def test_policy_of_the_pages_allows_no_other_sources(addresses):
    for path in ("/", "/docs"):
        policy = httpx.get(f"{addresses[0]}{path}").headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert "http" not in policy
        assert "frame-ancestors 'none'" in policy


def test_policy_of_a_report_allows_no_connections(addresses):
    headers = httpx.post(f"{addresses[0]}/view", json={"text": "a"}, timeout=30).headers
    assert headers["x-content-type-options"] == "nosniff"
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src 'none'" in policy
