"""Measure the speed of the bundled translator in Clearhead and in other libraries that load the same weights.

Usage: python benchmarks/translate.py SOURCE [--beams 1] [--number 1000] [--threads 2] [--rounds 5]
       [--isa avx2] [--json FILE]

SOURCE has one English sentence per line; the benchmark uses the first NUMBER distinct ones. The figures are source
words per second. Requires transformers; CTranslate2 is optional. Each library runs in its own process, interleaved by
rounds, and takes all sentences in one call, sorted by length in batches of 2,048 source tokens. In 8 bits, Clearhead
uses the translator's vocabulary shortlist by default; the row "without shortlist" does not. CTranslate2 runs without
its counterpart, a vmap file.
"""

import argparse
import importlib.util
import json
import tempfile
from pathlib import Path

import torch

from clearhead import TextToText, tune_process
from clearhead.benchmark import report
from clearhead.benchmark.hardware import hardware_info, limit_isa, without_slow_bfloat16
from clearhead.benchmark.runner import Candidate, run_benchmark
from clearhead.io import hub
from clearhead.runtime.precision import cpu_precisions

BATCH_TOKENS, MAX_LENGTH = 2048, 100


def clearhead_translate(folder, precision, threads, beams, shortlist=None):
    """Load the translator in Clearhead."""
    tune_process()
    torch.set_num_threads(threads)
    translator = TextToText.from_pretrained(folder, precision=precision, device="cpu", shortlist=shortlist)
    return lambda texts: translator.generate(texts, beam_size=beams, max_new_tokens=MAX_LENGTH)


def transformers_translate(folder, dtype, threads, beams):
    """Load transformers' `generate`, with batches of sentences of similar length."""
    import transformers

    torch.set_num_threads(threads)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.MarianMTModel.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    def translate(texts):
        lengths = [len(tokenizer(text).input_ids) for text in texts]
        order, outputs = sorted(range(len(texts)), key=lambda index: -lengths[index]), [""] * len(texts)
        while order:
            size = max(1, BATCH_TOKENS // lengths[order[0]])
            batch, order = order[:size], order[size:]
            inputs = tokenizer([texts[index] for index in batch], return_tensors="pt", padding=True)
            with torch.inference_mode():
                ids = model.generate(**inputs, num_beams=beams, max_new_tokens=MAX_LENGTH, do_sample=False)
            for index, text in zip(batch, tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True):
                outputs[index] = text
        return outputs

    return translate


def ctranslate2_translate(folder, converted, compute_type, threads, beams):
    """Load CTranslate2's translator."""
    import ctranslate2
    import transformers

    translator = ctranslate2.Translator(str(converted), device="cpu", compute_type=compute_type, intra_threads=threads)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def translate(texts):
        rows = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(texts).input_ids]
        results = translator.translate_batch(
            rows, beam_size=beams, max_decoding_length=MAX_LENGTH, max_batch_size=BATCH_TOKENS, batch_type="tokens"
        )
        return tokenizer.batch_decode(
            [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results], skip_special_tokens=True
        )

    return translate


def candidates(folder, workspace, threads, beams):
    """Return the installed libraries; the first is the baseline."""
    libraries = {
        f"transformers {dtype}": Candidate(transformers_translate, (folder, dtype, threads, beams))
        for dtype in ("float32", "bfloat16")
    }
    if importlib.util.find_spec("ctranslate2"):
        from ctranslate2.converters import TransformersConverter

        TransformersConverter(folder).convert(str(workspace / "ct2"))
        for compute_type in ("float32", "int8"):
            arguments = (folder, workspace / "ct2", compute_type, threads, beams)
            libraries[f"CTranslate2 {compute_type}"] = Candidate(ctranslate2_translate, arguments)
    else:
        print("skipped: ctranslate2 is not installed")
    for precision in cpu_precisions():
        libraries[f"clearhead {precision}"] = Candidate(clearhead_translate, (folder, precision, threads, beams))
        if precision == "int8":
            arguments = (folder, precision, threads, beams, False)
            libraries["clearhead int8 without shortlist"] = Candidate(clearhead_translate, arguments)
    return libraries


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("--beams", type=int, default=1)
    parser.add_argument("--number", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--isa", choices=("avx2",), help="limit all libraries to these instructions")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    limit_isa(args.isa)
    texts = list(dict.fromkeys(args.source.read_text(encoding="utf-8").splitlines()))[: args.number]
    folder = str(hub.resolve_model(hub.TRANSLATOR))
    with tempfile.TemporaryDirectory() as workspace:
        results = run_benchmark(
            without_slow_bfloat16(candidates(folder, Path(workspace), args.threads, args.beams), args.isa),
            texts,
            lambda batch: sum(len(text.split()) for text in batch),
            rounds=args.rounds,
            check=texts[:200],
            on_round=print,
        )
    first = next(iter(results.outputs.values()))
    same = {name: sum(a == b for a, b in zip(own, first, strict=True)) for name, own in results.outputs.items()}
    notes = {name: f"{count} of {len(first)} translations like the first row" for name, count in same.items()}
    for line in report.table(results.measurements, "words/s", notes):
        print(line)
    hardware = hardware_info(args.threads, ("clearhead", "torch", "transformers", "ctranslate2"))
    about = {"sentences": len(texts), "beams": args.beams, "same": same, "machine": hardware}
    print(json.dumps(about))
    if args.json:
        report.write_report(args.json, results.measurements, about)


if __name__ == "__main__":
    main()
