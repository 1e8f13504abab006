"""Measure the speed of reranking in Clearhead and in sentence-transformers' CrossEncoder, with the same weights.

Usage: python benchmarks/rerank.py TEXTS [--queries 32] [--passages 100] [--threads 2] [--rounds 5] [--isa avx2]
       [--json FILE]

TEXTS has one paragraph per line. The passages are their first words, about 100 tokens with the query, and each query
ranks other passages. The model is all-MiniLM-L6-v2 with a head of random weights, the size of ms-marco-MiniLM-L6-v2.
The figures are pairs per second. Each library runs in its own process, interleaved by rounds, and ranks the passages of
one query per call, with its defaults for batches. Requires sentence-transformers.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import torch

from clearhead import Reranker, tune_process
from clearhead.benchmark import report
from clearhead.benchmark.hardware import hardware_info, limit_isa, without_slow_bfloat16
from clearhead.benchmark.runner import Candidate, run_benchmark
from clearhead.checkpoints import load_encoder, new_classifier
from clearhead.io.hub import DEFAULT_MODEL, resolve_model
from clearhead.runtime.precision import cpu_precisions
from clearhead.tokenizers.tokenizer import Tokenizer

QUERY_WORDS, PASSAGE_WORDS = 9, 68


def in_order(results):
    """Return the scores in the order of the passages, from their indices and scores."""
    return [score for _, score in sorted(results)]


def clearhead_rank(folder, precision, threads):
    """Load the model in Clearhead."""
    tune_process()
    torch.set_num_threads(threads)
    reranker = Reranker.from_pretrained(folder, precision=precision, device="cpu")

    def rank(items):
        return [in_order((one.index, one.score) for one in reranker.rank(query, passages)) for query, passages in items]

    return rank


def cross_encoder_rank(folder, dtype, threads):
    """Load the model in sentence-transformers."""
    from sentence_transformers import CrossEncoder

    torch.set_num_threads(threads)
    model = CrossEncoder(folder, device="cpu", model_kwargs={"dtype": getattr(torch, dtype)})

    def rank(items):
        rankings = (model.rank(query, passages) for query, passages in items)
        return [in_order((one["corpus_id"], one["score"]) for one in ranking) for ranking in rankings]

    return rank


def write_model(folder):
    """Write all-MiniLM-L6-v2 with a random head of one score, and return its tokenizer."""
    torch.manual_seed(0)
    source = resolve_model(DEFAULT_MODEL)
    encoder, family = load_encoder(source)
    model = new_classifier(encoder, family, ["score"], "regression")
    torch.nn.init.normal_(model.head.out.weight, std=0.2)  # scores that differ
    tokenizer = Tokenizer.from_folder(source)
    Reranker(model, tokenizer, family, precision="float32", device="cpu").save_pretrained(folder)
    return tokenizer


def read_items(path, queries, passages):
    """Return (query, passages) for each query, from paragraphs without repetition."""
    lines = dict.fromkeys(path.read_text(encoding="utf-8").split("\n"))
    words = [words for line in lines if len(words := line.split()) >= QUERY_WORDS + PASSAGE_WORDS]
    needed = queries * passages
    if len(words) < needed:
        raise SystemExit(f"{path} has {len(words)} paragraphs of enough words; {needed} are needed")
    texts = [" ".join(line[QUERY_WORDS : QUERY_WORDS + PASSAGE_WORDS]) for line in words[:needed]]
    return [
        (" ".join(words[number * passages][:QUERY_WORDS]), texts[number * passages : (number + 1) * passages])
        for number in range(queries)
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path)
    parser.add_argument("--queries", type=int, default=32)
    parser.add_argument("--passages", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--isa", choices=("avx2",), help="limit all libraries to these instructions")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    limit_isa(args.isa)
    items = read_items(args.texts, args.queries, args.passages)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = write_model(folder)
        candidates = {"sentence-transformers float32": Candidate(cross_encoder_rank, (folder, "float32", args.threads))}
        for name in ("auto", *cpu_precisions()):
            candidates[f"clearhead {name}"] = Candidate(clearhead_rank, (folder, name, args.threads))
        results = run_benchmark(
            without_slow_bfloat16(candidates, args.isa),
            items,
            lambda batch: sum(len(passages) for _, passages in batch),
            rounds=args.rounds,
            check=items,
            on_round=lambda line: print(line, flush=True),
        )
    expected = np.array(next(iter(results.outputs.values())))
    errors = {name: float(np.abs(np.array(own) - expected).max()) for name, own in results.outputs.items()}
    notes = {name: f"largest difference of a score {error:.1e}" for name, error in errors.items()}
    for line in report.table(results.measurements, "pairs/s", notes):
        print(line)
    pairs = [(query, passage) for query, passages in items for passage in passages]
    tokens = sum(len(pair.ids) for pair in tokenizer.encode_pairs(pairs, 512)) / len(pairs)
    machine = hardware_info(args.threads, ("clearhead", "torch", "transformers", "sentence-transformers"))
    about = {"pairs": len(pairs), "tokens_per_pair": tokens, "spread": float(expected.std()), "errors": errors}
    print(json.dumps(about | {"machine": machine}))
    if args.json:
        report.write_report(args.json, results.measurements, about | {"machine": machine})


if __name__ == "__main__":
    main()
