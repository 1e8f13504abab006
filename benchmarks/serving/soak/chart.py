"""Chart of a soak: memory, descriptors and threads of the server, and latency of the polite clients."""

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from clearhead.io.atomic import atomic_file


def draw(path, report):
    """Draw the samples and latencies of a report; the periods of the greedy client are shaded."""
    figure = Figure(figsize=(9, 6.4), layout="constrained")
    FigureCanvasAgg(figure)
    memory, counts, latency = figure.subplots(3, 1, sharex=True)
    minutes = [sample["seconds"] / 60 for sample in report["samples"]]
    for name, label in (("rss", "resident"), ("pss", "proportional (PSS)")):
        memory.plot(minutes, [sample[name] for sample in report["samples"]], linewidth=1, label=label)
    memory.set(ylabel="memory in MiB", ylim=(0, 1.1 * max(sample["rss"] for sample in report["samples"])))
    for name in ("descriptors", "threads"):
        counts.plot(minutes, [sample[name] for sample in report["samples"]], linewidth=1, label=name)
    counts.set(ylabel="number", ylim=(0, None))
    times = [interval["seconds"] / 60 for interval in report["latency"]]
    latency.plot(times, [interval["p99"] for interval in report["latency"]], linewidth=1, label="99th percentile")
    latency.plot(times, [interval["p50"] for interval in report["latency"]], linewidth=1, label="median")
    latency.set(ylabel="latency in s", xlabel="minutes", yscale="log")
    for panel in (memory, counts, latency):
        for number, (first, last) in enumerate(report["greedy_periods"]):
            panel.axvspan(
                first / 60, last / 60, color="tab:gray", alpha=0.15, linewidth=0,
                label=None if number or panel is not latency else "greedy client sends",
            )  # fmt: skip
        label = "end of the warm-up" if panel is memory else None
        panel.axvline(report["warm_up"] / 60, color="black", linewidth=0.8, linestyle="--", label=label)
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8, loc="lower right", ncols=3)
    with atomic_file(path) as file:
        figure.savefig(file, format="png", dpi=90, pil_kwargs={"optimize": True})
