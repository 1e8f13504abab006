"""The tables and charts of docs/performance*.md and README.md match the reports in docs/benchmarks."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BYTES = 60_000


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("make_performance", ROOT / "docs/make_performance.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def test_tables_are_up_to_date(maker):
    for path in maker.PAGES:
        page = path.read_text(encoding="utf-8")
        assert page == maker.with_tables(page), "run python docs/make_performance.py"


def test_every_table_is_on_a_page_once(maker):
    pages = "".join(path.read_text(encoding="utf-8") for path in maker.PAGES)
    names = [match["name"] for match in maker.MARKED.finditer(pages)]
    assert len(names) == len(set(names)) == len(re.findall("written by docs/make_performance.py -->", pages))
    assert {"summary", "comparison", "machines", "targets"} <= set(names)
    kinds = {"encoding": "encode-captions", "generation": "generate-greedy", "training": "train"}
    for kind, task in kinds.items():
        measured = [processor for processor in maker.PROCESSORS if task in maker.tasks(processor)]
        assert {f"{kind} {processor}" for processor in measured} <= set(names)


def test_charts_are_up_to_date_and_small(maker):
    for name, processor in maker.CHARTS.items():
        content = (maker.IMAGES / name).read_bytes()
        assert maker.digest(processor).encode() in content, "run python docs/make_performance.py"
        assert len(content) < BYTES


def test_every_report_has_its_machine_and_its_date(maker):
    reports = sorted(path for path in maker.REPORTS.glob("*.json") if path.name != "targets.json")
    assert len(reports) >= sum(len(maker.tasks(processor)) for processor in maker.PROCESSORS)
    for path in reports:
        data = json.loads(path.read_text(encoding="utf-8"))
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", data["machine"]["date"])
        assert data["machine"]["processor"]
        # the report of a GPU has one card's throughputs, which are compared with nothing
        whole = all("rates" in figure for figure in data.get("figures", ())) or path.name.startswith("gpu-")
        assert whole or "note" in data, f"{path.name} has no rates and does not say why"


def test_claims_of_the_first_screen(maker):
    def median(task, processor, name):
        speedup = maker.load(task, processor).speedup(name)
        return speedup.median if speedup else 0.0

    for processor in maker.PROCESSORS:
        for task in maker.tasks(processor):
            names = [name for name in maker.load(task, processor).names if name.endswith("float32")]
            fastest = "CTranslate2 float32" if task.startswith("translate") else "clearhead float32"
            assert max(names, key=lambda name: median(task, processor, name)) == fastest, (task, processor)
    for task in maker.tasks("xeon-amx"):
        names = maker.load(task, "xeon-amx").names
        assert max(names, key=lambda name: median(task, "xeon-amx", name)) == "clearhead bfloat16", task
    for task in maker.tasks("zen4"):
        names = maker.load(task, "zen4").names
        if task != "train":
            assert max(names, key=lambda name: median(task, "zen4", name)) == "clearhead int8", task
    ahead = [
        median(task, "xeon", "CTranslate2 int8") > median(task, "xeon", "clearhead float32")
        for task in maker.tasks("xeon")
    ]
    assert ahead == [True, False, True, True, False]


def test_claims_about_int8_and_float32(maker):
    tasks = [task for task in maker.tasks("zen4") if task != "train"]
    leads = [maker.load(task, "zen4").speedup("clearhead int8", over="CTranslate2 int8").median for task in tasks]
    assert [round(min(leads), 1), round(max(leads), 1)] == [1.8, 2.3]
    behind = [
        maker.load(task, "zen4").speedup("CTranslate2 float32", over="clearhead float32").median
        for task in tasks
        if task.startswith("translate")
    ]
    assert [round(value, 1) for value in sorted(behind)] == [1.2, 1.4]
    assert "CTranslate2 is 1.2 to 1.4 times as fast" in (ROOT / "docs" / "performance.md").read_text()
    for task in ("encode-captions", "encode-paragraphs"):
        cosines = maker.load(task, "zen4").data["cosines"]
        assert cosines["clearhead int8"] >= 0.9995
        assert cosines["clearhead bfloat16"] >= 0.9999
        assert round(cosines["CTranslate2 int8"], 3) == 0.995


def test_claims_about_the_gpu():
    checks = json.loads((ROOT / "docs" / "benchmarks" / "gpu-h100.json").read_text())["checks"]
    page = " ".join((ROOT / "docs" / "performance.md").read_text().split())
    for claim, name, bound in (
        ("vectors to 5e-8", "encoding, float32: largest distance to the CPU's", 5e-8),
        ("generated tokens exactly", "generating, 4 beams, float32: targets that differ from the CPU's", 0),
        ("scores to 2e-6", "generating, 4 beams, float32: scores", 2e-6),
        ("the first training loss to 1e-7", "training, float32: first loss compared with the CPU", 1e-7),
        ("cosines are at least 0.999995", "encoding, bfloat16: 1 − cosine", 5e-6),
    ):
        assert claim in page
        assert checks[name]["distance"] <= bound, name


def test_speedups(maker):
    rates = maker.Report({"figures": [{"name": "a", "rates": [1, 2, 4]}, {"name": "b", "rates": [3, 4, 4]}]})
    assert str(rates.speedup("b")) == "2.00 (1.00 to 3.00)"  # compared within rounds: 3, 2, 1
    assert str(rates.speedup("a", over="b")) == "0.50 (0.33 to 1.00)"
    assert rates.speedup("c") is None
    kept = {"name": "b", "median": 30, "ratio": 2.9, "lowest": 2.8, "highest": 3.1}
    figures = [{"name": "a", "median": 10}, kept, {"name": "c", "median": 15}]
    summary = maker.Report({"figures": figures, "comparisons": {"b": {"c": 2.1}}})
    assert str(summary.speedup("b")) == "2.90 (2.80 to 3.10)"
    assert str(summary.speedup("b", over="c")) == "2.10"
    assert str(summary.speedup("c")) == "1.50"
