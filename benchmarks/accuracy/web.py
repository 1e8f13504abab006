"""Compare a web export of a translator, in headless Chromium, with the model in Python.

Usage: python benchmarks/accuracy/web.py PAGE SOURCE [REFERENCES] [--model MODEL] [--lines 200] [--without-simd]
       [--json FILE]

PAGE is a folder of `clearhead export MODEL PAGE --to web`. The first LINES lines of SOURCE are translated greedily and
with 5 beams, by the page and by Clearhead in float32. The benchmark reports the number of identical outputs, BLEU of
both against REFERENCES, the largest difference of an attention weight, the downloaded bytes, the time until the first
translation with an empty cache, the median and largest time of a sentence, and the time from the last key until the
page has drawn a sentence of ten words. With --without-simd, Chromium runs as on a processor without SSE 4.1, which has
no WebAssembly SIMD. Run it on an idle machine.
"""

import argparse
import json
import shutil
import statistics
import threading
import time
from pathlib import Path

import torch
from playwright.sync_api import sync_playwright

from clearhead import TextToText, watch
from clearhead.benchmark.hardware import hardware_info
from clearhead.export.web.server import page_server
from clearhead.io import hub
from clearhead.metrics.bleu import translation_scores

BEAMS = (1, 5)
PACKAGES = ("clearhead", "torch", "playwright")
READY = "html[data-ready=yes]:not([data-busy])"

TYPED = [
    "My sister wants to buy a new house this summer.",
    "We have to leave early because the train is late.",
    "The old man told us a story about his village.",
]
"""Sentences of ten words."""

TRANSLATE = """async ([texts, numBeams]) => {
    const results = [], plain = ({ data, shape }) => ({ data: Array.from(data), shape });
    for (const text of texts) {
        const start = performance.now();
        const { ids, source, text: output, attention } = await window.model.translate(text, { numBeams });
        const parts = numBeams === 1 ? Object.entries(attention).map(([part, weights]) => [part, plain(weights)]) : [];
        results.push({ ids, source: source.ids, output, seconds: (performance.now() - start) / 1000,
            attention: Object.fromEntries(parts) });
    }
    return results;
}"""


def attention_error(pipeline, result):
    """Return the largest difference of an attention weight of a greedy output from the weights that `watch` records."""
    target = torch.tensor([[pipeline.model.config.start_id, *result["ids"][:-1]]])
    with torch.inference_mode(), watch(pipeline.model) as records:
        pipeline.model(torch.tensor([result["source"]]), target)
    parts = {"encoder": "encoder", "decoder": "self", "cross": "cross"}
    error = 0.0
    for record in records.records:
        weights = result["attention"][parts[record.part]]
        ours = torch.tensor(weights["data"]).reshape(weights["shape"])[record.layer]
        error = max(error, float((ours - record.values[0]).abs().max()))
    return error


def size_of(response):
    """Return the bytes of a response of the server; a blob is a copy within the browser."""
    return int(response.headers.get("content-length", 0)) if response.url.startswith("http") else 0


def typing_seconds(page, text):
    """Return the time from the last key of a text until the page has drawn its pictures."""
    start = time.perf_counter()
    page.locator("#text").fill(text)
    page.wait_for_selector(READY)
    return time.perf_counter() - start


def measure(page, address, texts):
    """Return the results of a page for each number of beams, its times in seconds, and the downloaded bytes."""
    sizes = []
    page.on("response", lambda response: sizes.append(size_of(response)))
    start = time.perf_counter()
    page.goto(address)
    page.wait_for_selector(READY, timeout=120_000)
    seconds, downloaded = {"until ready": time.perf_counter() - start}, sum(sizes)
    seconds["ten words typed"] = statistics.median(typing_seconds(page, text) for text in TYPED)
    page.evaluate('import("./clearhead.js").then(({ load }) => load(".")).then((model) => { window.model = model; })')
    return {beams: page.evaluate(TRANSLATE, [texts, beams]) for beams in BEAMS}, seconds, downloaded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("references", type=Path, nargs="?")
    parser.add_argument("--model", default=hub.TRANSLATOR)
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--without-simd", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    texts = args.source.read_text(encoding="utf-8").split("\n")[: args.lines]
    pipeline = TextToText.from_pretrained(
        args.model, precision="float32", device="cpu", shortlist=False, copy_unknown=False
    )
    expected = {beams: pipeline.generate(texts, num_beams=beams, return_details=True) for beams in BEAMS}
    with sync_playwright() as playwright, page_server(args.page, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        executable = shutil.which("chromium") or shutil.which("google-chrome")
        flags = ["--no-sandbox", "--disable-gpu", *(["--js-flags=--no-enable-sse4-1"] if args.without_simd else [])]
        browser = playwright.chromium.launch(executable_path=executable, args=flags)
        address = f"http://127.0.0.1:{server.server_port}/"
        results, seconds, downloaded = measure(browser.new_page(), address, texts)
        version = browser.version
        browser.close()
        server.shutdown()
    report = {"lines": len(texts), "chromium": version, "seconds": seconds, "downloaded MB": downloaded / 1e6}
    for beams in BEAMS:
        pairs = list(zip(results[beams], expected[beams], strict=True))
        times = [result["seconds"] for result, _ in pairs]
        name = f"{beams} beams"
        report[f"{name}: identical outputs"] = sum(one["ids"] == list(other.token_ids) for one, other in pairs)
        report[f"{name}: seconds of a sentence"] = {"median": statistics.median(times), "largest": max(times)}
        if args.references is not None:
            references = args.references.read_text(encoding="utf-8").split("\n")[: args.lines]
            for side, outputs in (("page", [one["output"] for one, _ in pairs]), ("model", [o.text for _, o in pairs])):
                report[f"{name}: BLEU of the {side}"] = translation_scores(outputs, [references]).bleu
    report["largest difference of an attention weight"] = max(attention_error(pipeline, one) for one in results[1])
    text = json.dumps(report | {"hardware": hardware_info(torch.get_num_threads(), PACKAGES)}, indent=2)
    print(text)
    if args.json is not None:
        args.json.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
