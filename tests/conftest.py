"""Shared fixtures; jaxtyping and beartype check the shapes in all signatures."""

import os
import random
import shutil
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers share the cores

import support.shapes  # noqa: F401  # the hook finds it by its name
from jaxtyping import install_import_hook

install_import_hook("clearhead", "support.shapes.check_first_calls")

import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402
from support import tiers  # noqa: E402

settings.register_profile(
    "clearhead",
    deadline=None,
    max_examples=40,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("clearhead")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """One worker more than cores, since many tests wait for a server, a browser or a process."""
    return (os.cpu_count() or 1) + 1


def pytest_addoption(parser):
    """Let a slow machine end in time."""
    help = "skip the slow tests that have not started at this time, in seconds since 1970"
    parser.addoption("--slow-until", type=float, metavar="TIME", help=help)


def pytest_collection_modifyitems(config, items):
    """Shuffle the modules if there may not be time for all slow tests, so that each run covers other ones."""
    until = config.getoption("slow_until")
    if until is not None:
        modules = list(dict.fromkeys(item.path for item in items))
        random.Random(until).shuffle(modules)
        items.sort(key=lambda item: modules.index(item.path))


def pytest_runtest_setup(item):
    """Skip a slow test after the time of `--slow-until`."""
    until = item.config.getoption("slow_until")
    if until is not None and time.time() > until and item.get_closest_marker("slow"):
        pytest.skip("no time left for slow tests")


def pytest_itemcollected(item):
    """Add the markers of the test tiers."""
    for tier in tiers.of(item):
        item.add_marker(tier)


def pytest_ignore_collect(collection_path):
    """Skip the modules that Windows cannot import."""
    if sys.platform != "win32":
        return None
    path = collection_path / "conftest.py" if collection_path.is_dir() else collection_path
    return True if path.suffix == ".py" and path.is_file() and tiers.needs_posix(path) else None


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def one_thread():
    """Use one thread, as `support.forks` does: a run cannot be resumed with another number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def minilm_folder():
    """Folder of all-MiniLM-L6-v2, from the package that the Makefile installs."""
    from clearhead.io import hub

    return hub.resolve_model("all-MiniLM-L6-v2")


@pytest.fixture(scope="session")
def minilm():
    from clearhead import TextEncoder

    return TextEncoder.from_pretrained(precision="float32", device="cpu")


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory):
    """Folder of a tiny random BERT, created by transformers."""
    from support.models.tiny import make_bert

    return make_bert(tmp_path_factory.mktemp("tiny-bert"))


@pytest.fixture(scope="session")
def qa_folder(tmp_path_factory):
    """Folder of a tiny random BERT with a head for answer spans, created by transformers."""
    from support.models.families import make

    folder = tmp_path_factory.mktemp("qa-bert")
    make("bert", folder, "ForQuestionAnswering")
    return folder


@pytest.fixture(scope="module")
def browser():
    """Chromium; the tests are skipped if it is not installed."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    sync = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    with sync.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()
