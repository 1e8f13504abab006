"""The built site: complete, independent of other hosts, and readable at every width and on paper."""

import functools
import http.server
import shutil
import sys
import threading
from pathlib import Path
from urllib.parse import unquote

import pytest
from support.once import once
from support.pages import site as sites
from support.pages.site import Page, css_addresses, is_foreign

pytestmark = pytest.mark.slow

PAPER_WIDTH = 680  # A4 less its margins, in pixels of 1/96 inch

OVERFLOWING = """() => {
    const beyond = [];
    const name = (element) => `${element.tagName.toLowerCase()}.${element.className}: `
        + (element.textContent || element.src || "").trim().slice(0, 60);
    for (const element of document.querySelectorAll("article *")) {
        const box = element.getBoundingClientRect();
        if (box.width === 0 || box.height === 0 || element.closest(".katex-mathml, .md-clipboard, svg *")) continue;
        let scrolls = false;
        for (let parent = element.parentElement; parent && !scrolls; parent = parent.parentElement) {
            const style = getComputedStyle(parent);
            const outer = parent.getBoundingClientRect();
            if (["auto", "scroll"].includes(style.overflowX)) scrolls = !PAPER;
            else if (["hidden", "clip"].includes(style.overflowX) && style.position !== "absolute"
                && outer.width > 2 && box.right > outer.right + 2) beyond.push("cut off: " + name(element));
        }
        if (!scrolls && box.right > document.documentElement.clientWidth + 1) beyond.push("too wide: " + name(element));
    }
    return beyond;
}"""


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The built site, made once for all pytest processes."""
    pytest.importorskip("mkdocs", reason="pip install mkdocs: the extra docs")
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed: apt-get install npm")
    return once(tmp_path_factory, "site", sites.build)


@pytest.fixture(scope="session")
def pages(folder):
    """The names of all pages, without the one for missing pages, whose links start at the host, and the explorer's."""
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*.html"))
    return sorted(name for name in names if name not in ("404.html", "explorer/index.html", "explorer/lesson.html"))


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="session")
def address(folder):
    """The address of a server of the site."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Silent, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture
def tab(browser, address):
    """A browser tab that records requests to other hosts and errors of scripts."""
    tab = browser.new_page()
    tab.foreign, tab.errors = [], []
    tab.on("request", lambda request: request.url.startswith(address) or tab.foreign.append(request.url))
    tab.on("pageerror", lambda error: tab.errors.append(str(error)))
    yield tab
    tab.close()


def opened(tab, address, name):
    """Open a page, and wait until its fonts and pictures are loaded."""
    tab.goto(f"{address}/{name}", wait_until="load")
    tab.evaluate("() => { for (const image of document.images) image.loading = 'eager'; }")
    tab.evaluate("() => Promise.all([document.fonts.ready, ...[...document.images].map((image) => image.decode())])")


def test_pages_load_nothing_from_another_host(folder, pages):
    loads = [(name, load) for name in pages for load in Page((folder / name).read_text(encoding="utf-8")).loads]
    styles = [
        (path.name, load) for path in folder.rglob("*.css") for load in css_addresses(path.read_text(encoding="utf-8"))
    ]
    assert any("katex.min.js" in load for _, load in loads)
    assert any("KaTeX_Main" in load for _, load in styles)
    assert [(name, load) for name, load in loads + styles if is_foreign(load) and not load.startswith("data:")] == []


def test_links_and_anchors_exist(folder, pages):
    parsed = {folder / name: Page((folder / name).read_text(encoding="utf-8")) for name in pages}
    broken = []
    for path, page in parsed.items():
        for link in page.links + page.loads:
            name, _, anchor = link.partition("#")
            if is_foreign(link) or link.startswith(("data:", "mailto:", "javascript:")):
                continue
            target = (path.parent / unquote(name.partition("?")[0])).resolve() if name else path
            target = target / "index.html" if target.is_dir() else target
            known = parsed[target].anchors if target in parsed else {anchor}
            if not target.is_file() or (anchor and unquote(anchor) not in known):
                broken.append((path.relative_to(folder).as_posix(), link))
    assert broken == []


def test_the_front_page_leads_to_the_explorer(tab, address, folder):
    assert not (folder / "explorer" / "disk").exists()
    opened(tab, address, "index.html")
    tab.get_by_role("link", name="Open the explorer").click()
    tab.wait_for_selector("html[data-ready=yes]:not([data-busy])", timeout=120_000)
    assert tab.locator("#output").inner_text() == "Die alte Brücke war nach dem Sturm geschlossen."
    assert [request for request in tab.foreign if not request.startswith("blob:")] == []
    assert tab.errors == []


def test_the_front_page_leads_to_the_lesson(tab, address):
    opened(tab, address, "index.html")
    tab.get_by_role("link", name="Take the lesson").click()
    tab.wait_for_selector("html[data-ready=yes]:not([data-busy])", timeout=120_000)
    assert tab.locator("#output").inner_text() == "Ich habe die Katze nicht gesehen."
    assert [request for request in tab.foreign if not request.startswith("blob:")] == []
    assert tab.errors == []


def test_every_page_of_the_documentation_is_built(folder):
    sources = [path.relative_to(sites.ROOT / "docs").with_suffix("") for path in (sites.ROOT / "docs").glob("**/*.md")]
    names = [name for name in sources if "node_modules" not in name.parts]
    notebooks = [Path("notebooks") / path.stem for path in (sites.ROOT / "notebooks").glob("*.ipynb")]
    assert len(notebooks) == 5
    for name in (*names, *notebooks):
        assert (folder / name / "index.html").is_file() or (folder / name).with_suffix(".html").is_file(), name
    assert not list(folder.rglob("package*.json"))


@pytest.mark.parametrize("width", [400, 1000, 1600])
def test_nothing_is_cut_off(tab, address, pages, width):
    tab.set_viewport_size({"width": width, "height": 900})
    wrong = {}
    for name in pages:
        opened(tab, address, name)
        found = tab.evaluate(OVERFLOWING.replace("PAPER", "false"))
        if tab.evaluate("document.scrollingElement.scrollWidth > window.innerWidth"):
            found.append("the page scrolls sideways")
        if found:
            wrong[name] = found[:5]
    assert wrong == {}
    assert tab.foreign == []
    assert tab.errors == []


@pytest.mark.parametrize("width", [400, 1000])
def test_code_wraps(tab, address, pages, width):
    tab.set_viewport_size({"width": width, "height": 900})
    wider = "[...document.querySelectorAll('pre')].filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText)"
    for name in pages:
        opened(tab, address, name)
        assert tab.evaluate(wider) == [], name


def test_equations_are_rendered(tab, address, pages):
    for name in pages:
        opened(tab, address, name)
        assert tab.locator(".katex-error").all_text_contents() == [], name
        text = tab.locator("article").inner_text()
        assert "$$" not in text, name
        assert "\\frac" not in text, name
    for name, selector, least in (
        ("notebooks/02_encoder_equations", ".katex", 80),
        ("notebooks/01_encoder_parts", ".katex-display", 1),
        ("paper", "td math", 40),
        ("reference", "math", 10),
    ):
        (page,) = [page for page in pages if page in (f"{name}/index.html", f"{name}.html")]
        opened(tab, address, page)
        assert tab.locator(f"article {selector}").count() >= least, name
    assert tab.foreign == []


def test_equations_of_a_markdown_page_are_rendered(tab, address, folder):
    """arithmatex marks equations; the script of the site renders them."""
    import markdown

    text = markdown.markdown(
        "Let $d_k$ be\n\n$$\\frac{1}{2}$$\n",
        extensions=["pymdownx.arithmatex"],
        extension_configs={"pymdownx.arithmatex": {"generic": True}},
    )
    opened(tab, address, "index.html")
    tab.locator("article").evaluate("(article, text) => { article.innerHTML = text; }", text)
    tab.add_script_tag(url=f"{address}/assets/equations.js")
    assert tab.locator("article .katex").count() == 2
    assert tab.locator("article .katex-display .mfrac").count() == 1


def test_pages_fit_on_paper(tab, address, pages):
    tab.set_viewport_size({"width": PAPER_WIDTH, "height": 1000})
    tab.emulate_media(media="print")
    wrong = {}
    for name in pages:
        opened(tab, address, name)
        if found := tab.evaluate(OVERFLOWING.replace("PAPER", "true")):
            wrong[name] = found[:5]
        for selector in (".md-header", ".md-sidebar", ".md-footer", ".headerlink"):
            for element in tab.locator(selector).all():
                assert not element.is_visible(), (name, selector)
    assert wrong == {}


def test_build_without_npm_names_it(tmp_path, monkeypatch):
    pytest.importorskip("mkdocs", reason="pip install mkdocs: the extra docs")
    monkeypatch.syspath_prepend(sites.ROOT / "docs")
    monkeypatch.delitem(sys.modules, "katex", raising=False)
    import katex

    assert not katex.is_installed(tmp_path)
    monkeypatch.setattr(katex.shutil, "which", lambda name: None)
    with pytest.raises(katex.PluginError, match=r"npm was not found.*Node\.js"):
        katex.install(tmp_path)
