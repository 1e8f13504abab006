"""Write the tables of docs/performance*.md and README.md, and the charts, from the reports in docs/benchmarks.

python docs/make_performance.py

A report is named after its task and its processor, such as encode-captions-zen4.json; `--json` of the scripts in
benchmarks/ writes it. A page marks the place of a table with two comments, and the text between them is replaced.
"""

import hashlib
import json
import re
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
REPORTS = Path(__file__).parent / "benchmarks"
IMAGES = Path(__file__).parent / "images"
PAGES = (ROOT / "docs/performance.md", ROOT / "docs/performance-details.md", ROOT / "README.md")

PROCESSORS = {
    "zen4": "AMD EPYC, Zen 4",
    "zen5": "AMD EPYC, Zen 5",
    "xeon-amx": "Intel Xeon with AMX",
    "xeon": "Intel Xeon without AMX",
    "avx2": "AMD EPYC, Zen 5, limited to AVX2",
    "zen3": "AMD EPYC, Zen 3",
}
MAIN = "zen4"
CHARTS = {
    "performance.png": "zen4",
    "performance-amx.png": "xeon-amx",
    "performance-avx2.png": "avx2",
}
EXPECTED = {
    "AVX2": ("avx2", "zen3"),
    "AVX-512 with VNNI and bfloat16": ("zen4",),
    "AMX": ("xeon-amx",),
}
"""The kinds of processors in the first table. A task's figures are from the first one that was measured."""
TARGETS = {"Zen 4": ("zen4",), "Zen 5": ("zen5",), "AVX2": ("avx2", "zen3"), "Xeon with AMX": ("xeon-amx",)}
"""The kinds of processors in the table of targets, as in `EXPECTED`."""
TASKS = {
    "encode-captions": ("captions", "sentence-transformers"),
    "encode-paragraphs": ("paragraphs", "sentence-transformers"),
    "generate-greedy": ("greedy", "transformers"),
    "generate-4-beams": ("4 beams", "transformers"),
    "translate-greedy": ("bundled translator, greedy", "transformers"),
    "translate-5-beams": ("bundled translator, 5 beams", "transformers"),
    "train": ("training", "nn.Transformer"),
}
"""Each task with its row name and the PyTorch library that it is compared with."""

COLUMNS = (("clearhead", "float32"), ("CTranslate2", "float32"), ("clearhead", "bfloat16"), ("PyTorch", "bfloat16"),
           ("clearhead", "int8"), ("CTranslate2", "int8"))  # fmt: skip
"""Columns of the summary and bars of the charts: float32 first, then lower precision."""

MARKED = re.compile(
    r"(?P<begin><!-- (?P<name>[\w -]+): written by docs/make_performance.py -->\n\n).*?"
    r"(?P<end>\n<!-- end of (?P=name) -->\n)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Speedup:
    """Ratio of two throughputs: median over the rounds, with minimum and maximum where they are known."""

    median: float
    lowest: float | None = None
    highest: float | None = None

    def __str__(self) -> str:
        if self.lowest is None or self.lowest == self.highest:
            return f"{self.median:.2f}"
        return f"{self.median:.2f} ({self.lowest:.2f} to {self.highest:.2f})"


@dataclass(frozen=True)
class Report:
    """One benchmark on one processor."""

    data: dict[str, Any]

    @property
    def names(self) -> list[str]:
        """Names of the candidates; the first is the baseline."""
        return [figure["name"] for figure in self.data["figures"]]

    def figure(self, name: str) -> dict[str, Any]:
        """Return the figures of a candidate, or an empty dict if it was not measured."""
        return next((figure for figure in self.data["figures"] if figure["name"] == name), {})

    def rate(self, name: str) -> str:
        """Return the median throughput of a candidate as text."""
        return f"{self.figure(name)['median']:,.0f}" if self.figure(name) else "–"

    def speedup(self, name: str, over: str | None = None) -> Speedup | None:
        """Return the speedup of one candidate over another, by default over the baseline.

        Rounds are compared with each other if the report has them. Otherwise the speedup is one that the report states,
        or the quotient of two medians.
        """
        over = over or self.names[0]
        one, other = self.figure(name), self.figure(over)
        if not one or not other:
            return None
        if "rates" in one and "rates" in other:
            ratios = [a / b for a, b in zip(one["rates"], other["rates"], strict=True)]
            return Speedup(statistics.median(ratios), min(ratios), max(ratios))
        if over == self.names[0] and "ratio" in one:
            return Speedup(one["ratio"], one["lowest"], one["highest"])
        stated = self.data.get("comparisons", {}).get(name, {}).get(over)
        return Speedup(stated or one["median"] / other["median"])

    def memory(self, name: str) -> str:
        """Return the peak memory of a candidate in MiB as text."""
        figure = self.figure(name)
        return f"{figure['peak_mib']:,.0f}" if "peak_mib" in figure else "–"

    def training_memory(self, name: str) -> str:
        """Return the memory that training adds to the loaded process in MiB as text."""
        figure = self.figure(name)
        if "training_mib" in figure:
            return f"{figure['training_mib']:,.0f}"
        return f"{figure['peak_mib'] - figure['loaded_mib']:,.0f}"


def load(task: str, processor: str) -> Report:
    """Read the report of a task on a processor."""
    return Report(json.loads((REPORTS / f"{task}-{processor}.json").read_text(encoding="utf-8")))


def tasks(processor: str) -> dict[str, tuple[str, str]]:
    """Return the tasks that were measured on a processor, as in `TASKS`."""
    return {task: names for task, names in TASKS.items() if (REPORTS / f"{task}-{processor}.json").is_file()}


def first_measured(task: str, processors: tuple[str, ...]) -> Report | None:
    """Return the report of a task on the first processor that has one."""
    return next((load(task, processor) for processor in processors if task in tasks(processor)), None)


def candidate(task: str, library: str, precision: str) -> str:
    """Return the name of a column's candidate in the reports of a task."""
    return f"{TASKS[task][1] if library == 'PyTorch' else library} {precision}"


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def summary(processor: str) -> str:
    """Return the speedups over PyTorch in float32; the fastest of each precision class is bold."""
    rows = []
    for task, (label, _) in tasks(processor).items():
        report = load(task, processor)
        found = [report.speedup(candidate(task, *column)) for column in COLUMNS]
        cells = [f"{speedup.median:.2f}" if speedup else "–" for speedup in found]
        for group in (slice(0, 2), slice(2, 6)):
            values = [speedup.median if speedup else 0.0 for speedup in found[group]]
            if any(values):
                best = group.start + values.index(max(values))
                cells[best] = f"**{cells[best]}**"
        rows.append([label, *cells])
    return markdown(["task", *(f"{_library(library)} {precision}" for library, precision in COLUMNS)], rows)


def expected() -> str:
    """Return the fastest precision of Clearhead on each kind of processor, with its speedups."""
    rows = []
    for task, (label, _) in TASKS.items():
        cells = []
        for processors in EXPECTED.values():
            report = first_measured(task, processors)
            if report is None:
                cells.append("–")
                continue
            own = [candidate(task, "clearhead", precision) for precision in ("float32", "bfloat16", "int8")]
            best = max((name for name in own if report.figure(name)), key=lambda name: report.figure(name)["median"])
            others = [name for name in report.names if "clearhead" not in name and "ONNX" not in name]
            rival = max(others, key=lambda name: report.figure(name)["median"])
            precision = best.rsplit(" ", 1)[1]
            cells.append(f"{precision}: {report.speedup(best).median:.1f}, {report.speedup(best, rival).median:.1f}")
        rows.append([label, *cells])
    return markdown(["task", *EXPECTED], rows)


def memory(processor: str) -> str:
    """Return the peak memory of all tasks."""
    columns = [COLUMNS[0], COLUMNS[2], COLUMNS[4], ("PyTorch", "float32"), COLUMNS[1], COLUMNS[5]]
    rows = []
    for task, (label, _) in tasks(processor).items():
        report = load(task, processor)
        rows.append([label, *(report.memory(candidate(task, *column)) for column in columns)])
    header = [f"{_library(library)}, {precision}" for library, precision in columns]
    return markdown(["task, peak MiB", *header], rows)


def comparison() -> str:
    """Return README's table on the main processor: tokens per second, and words per second for the translator."""
    columns = [COLUMNS[0], ("PyTorch", "float32"), COLUMNS[1], COLUMNS[2], COLUMNS[4], COLUMNS[5]]
    rows = []
    for task, (label, library) in tasks(MAIN).items():
        report = load(task, MAIN)
        cells = [report.rate(candidate(task, *column)) for column in columns]
        cells[1] += f" ({'`' + library + '`' if library.startswith('nn.') else library})"
        rows.append([f"{task.split('-')[0]}: {label}" if "-" in task else label, *cells])
    header = [f"{_library(library)} {precision}" for library, precision in columns]
    return markdown(["task", *header], rows)


def encoding(processor: str) -> str:
    """Return throughput, speedup and cosine of encoding, for each library."""
    captions, paragraphs = load("encode-captions", processor), load("encode-paragraphs", processor)
    rows = []
    for name in captions.names:
        cosines = [report.data["cosines"].get(name) for report in (captions, paragraphs)]
        cosine = "–" if None in cosines else f"{min(cosines):.4f}"
        rows.append([_row_name(name), *_speed(captions, name), *_speed(paragraphs, name), cosine])
    header = ["library", "captions, tokens/s", "speedup", "paragraphs, tokens/s", "speedup", "lowest cosine"]
    return markdown(header, rows)


def generation(processor: str) -> str:
    """Return throughput and speedup of generation, and the number of identical outputs, for each library."""
    greedy, beams = load("generate-greedy", processor), load("generate-4-beams", processor)
    rows = []
    for name in greedy.names:
        same = greedy.data.get("same", {}).get(name, "–")
        rows.append([_row_name(name), *_speed(greedy, name), *_speed(beams, name), str(same)])
    header = ["library", "greedy, tokens/s", "speedup", "4 beams, tokens/s", "speedup", "identical, greedy"]
    return markdown(header, rows)


def translation(processor: str) -> str:
    """Return throughput and speedup of the bundled translator for each library."""
    greedy, beams = load("translate-greedy", processor), load("translate-5-beams", processor)
    rows = [[_row_name(name), *_speed(greedy, name), *_speed(beams, name)] for name in greedy.names]
    return markdown(["library", "greedy, words/s", "speedup", "5 beams, words/s", "speedup"], rows)


def long_targets() -> str:
    """Return throughput, speedup and memory of generating 128 tokens with 4 beams."""
    report = load("generate-128-tokens", "xeon-amx")
    rows = [[_row_name(name), *_speed(report, name), report.memory(name)] for name in report.names]
    return markdown(["library", "tokens/s", "speedup", "peak MiB"], rows)


def training(processor: str) -> str:
    """Return throughput, speedup and memory of training, for each library."""
    report = load("train", processor)
    rows = [[_row_name(name), *_speed(report, name), report.memory(name), report.training_memory(name)]
            for name in report.names]  # fmt: skip
    return markdown(["library", "tokens/s", "speedup", "peak MiB", "MiB for training"], rows)


def machines() -> str:
    """Return the processors with their instructions, matmul throughput and versions."""
    rows = []
    for processor, label in PROCESSORS.items():
        data = load(next(iter(tasks(processor))), processor).data
        machine, rates = data["machine"], data.get("matmul_rates", {})
        instructions = ", ".join(flag.replace("_", " ").upper() for flag in machine["instructions"])
        measured = [f"{rates[dtype] / 1e9:,.0f}" if dtype in rates else "–" for dtype in ("float32", "bfloat16")]
        rows.append([label, instructions, *measured, machine["date"]])
    return markdown(
        ["two cores of", "instructions", "float32 matmul, GFLOP/s", "bfloat16 matmul, GFLOP/s", "date"], rows
    )


def targets() -> str:
    """Return the targets and the measured values; missed targets are bold."""
    rows = []
    for goal in json.loads((REPORTS / "targets.json").read_text(encoding="utf-8")):
        cells, missed = [], False
        for kind in TARGETS.values():
            allowed = goal.get("processors", ("zen4", "zen5", "xeon-amx"))
            chosen = tuple(processor for processor in kind if processor in allowed)
            found = [first_measured(task, chosen) for task in goal["reports"]]
            values = [_reached(goal, report) for report in found if report]
            marked = (f"{value:.2f}" if value >= goal["least"] else f"**{value:.2f}**" for value in values)
            cells.append(", ".join(marked) or "–")
            missed |= any(value < goal["least"] for value in values)
        least = f"{goal['least']:.2f} ({goal['aim']:.2f})"
        rows.append([goal["goal"], least, *cells, goal.get("reason", "") if missed else ""])
    return markdown(["target", "at least (aim)", *TARGETS, "why missed"], rows)


def _reached(goal: dict[str, Any], report: Report) -> float:
    if "share" in goal:
        share: float = report.data["shares"][goal["share"]]
        return share
    speedup = report.speedup(goal["candidate"], goal["over"])
    assert speedup is not None, goal
    return round(speedup.median, 2)


def _library(name: str) -> str:
    return "Clearhead" if name == "clearhead" else name


def _row_name(name: str) -> str:
    library, precision = name.split(" ", 1) if name.startswith(("nn.", "clearhead")) else ("", name)
    return f"`{library}` {precision}" if library.startswith("nn.") else f"{_library(library)} {precision}".strip()


def _speed(report: Report, name: str) -> list[str]:
    return [report.rate(name), str(report.speedup(name) or "–")]


SECTIONS: dict[str, Callable[[], str]] = {
    "expected": expected,
    "summary": lambda: summary(MAIN),
    "comparison": comparison,
    "machines": machines,
    "targets": targets,
    "long targets": long_targets,
}
for _processor in PROCESSORS:
    SECTIONS |= {
        f"summary {_processor}": lambda processor=_processor: summary(processor),
        f"encoding {_processor}": lambda processor=_processor: encoding(processor),
        f"generation {_processor}": lambda processor=_processor: generation(processor),
        f"translation {_processor}": lambda processor=_processor: translation(processor),
        f"memory {_processor}": lambda processor=_processor: memory(processor),
        f"training {_processor}": lambda processor=_processor: training(processor),
    }


def with_tables(text: str) -> str:
    """Return a page with the current tables between its markers."""
    return MARKED.sub(lambda match: match["begin"] + SECTIONS[match["name"]]() + match["end"], text)


def bars(processor: str) -> Iterator[tuple[str, list[Speedup | None]]]:
    """Yield each column of the chart with its speedups, task by task."""
    for library, precision in COLUMNS:
        found = [load(task, processor).speedup(candidate(task, library, precision)) for task in tasks(processor)]
        yield f"{_library(library)} {precision}", found


def digest(processor: str) -> str:
    """Return a digest of the speedups in a chart; the chart contains it, so a test can find stale charts."""
    return hashlib.sha256(repr(list(bars(processor))).encode()).hexdigest()


def draw(path: Path, processor: str) -> None:
    """Draw the speedups over PyTorch in float32 as grouped bars, with minimum and maximum over the rounds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    colors = ("tab:blue", "tab:gray", "#0b3d66", "#d9a066", "#2a9d8f", "#555555")
    for index, (label, found) in enumerate(bars(processor)):
        places = [group + (index - 2.5) * 0.14 for group, speedup in enumerate(found) if speedup]
        shown = [speedup for speedup in found if speedup]
        if not shown:
            continue
        medians = [speedup.median for speedup in shown]
        spread = [
            [one.median - (one.lowest or one.median) for one in shown],
            [(one.highest or one.median) - one.median for one in shown],
        ]
        panel.bar(places, medians, 0.13, yerr=spread, color=colors[index], label=label, error_kw={"linewidth": 0.8})
        for place, one in zip(places, shown, strict=True):
            panel.text(place, (one.highest or one.median) + 0.03, f"{one.median:.1f}", ha="center", fontsize=7)
    panel.axhline(1, color="black", linewidth=0.8, linestyle="--", label="PyTorch float32")
    labels = [label.replace("translator, ", "translator,\n") for label, _ in tasks(processor).values()]
    panel.set_xticks(range(len(labels)), labels, fontsize=8)
    panel.set_ylabel("speedup over PyTorch float32")
    panel.set_title(f"{PROCESSORS[processor]}, 2 cores: throughput (higher is better)", fontsize="medium")
    panel.legend(ncols=3, fontsize=8, frameon=False)
    panel.set_ylim(0, panel.get_ylim()[1] * 1.2)
    panel.grid(axis="y", alpha=0.3)
    panel.set_axisbelow(True)
    figure.savefig(path, format="png", dpi=100, metadata={"Comment": digest(processor)})


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
    for name, processor in CHARTS.items():
        draw(IMAGES / name, processor)
