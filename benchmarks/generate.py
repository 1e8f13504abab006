"""Measure the throughput of generation in Clearhead and in other libraries.

Usage: python benchmarks/generate.py [--beams 4] [--sentences 32] [--steps 32] [--threads 2] [--rounds 5]
       [--isa avx2] [--json FILE]

The model has Marian's base size (6 + 6 layers, d_model 512, 58,101 tokens) and random weights. Every target has exactly
STEPS tokens, so all libraries do the same work. Requires transformers; CTranslate2 is optional. Each library runs in
its own process, interleaved by rounds.
"""

import argparse
import importlib.util
import json
import tempfile
from pathlib import Path

import torch

from clearhead.benchmark import generate, report
from clearhead.benchmark.hardware import hardware_info, limit_isa, matmul_rate, without_slow_bfloat16
from clearhead.benchmark.runner import Candidate, run_benchmark

VOCABULARY = 58101


def write_random_model(folder):
    """Write a random model in transformers' format, and a tokenizer with the same vocabulary size."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    torch.manual_seed(0)
    config = transformers.MarianConfig(
        d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8,
        encoder_ffn_dim=2048, decoder_ffn_dim=2048, vocab_size=VOCABULARY, activation_function="swish",
        scale_embedding=True, max_position_embeddings=512, num_beams=1, forced_eos_token_id=None, eos_token_id=0,
        pad_token_id=VOCABULARY - 1, decoder_start_token_id=VOCABULARY - 1,
    )  # fmt: skip
    model = transformers.MarianMTModel(config).eval()
    model.save_pretrained(folder)
    words = {"</s>": 0, "<unk>": 1} | {f"w{number}": number for number in range(2, VOCABULARY - 1)}
    tokenizer = Tokenizer(models.WordLevel(words | {"<pad>": VOCABULARY - 1}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="</s>"
    ).save_pretrained(folder)


def transformers_generate(folder, dtype, threads, beams, steps):
    """Load transformers' `generate`; all sentences are one batch."""
    import transformers

    torch.set_num_threads(threads)
    model = transformers.MarianMTModel.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    pad = model.config.pad_token_id

    def generate_all(sources):
        longest = max(map(len, sources))
        ids = torch.tensor([row + [pad] * (longest - len(row)) for row in sources])
        outputs = model.generate(
            input_ids=ids, attention_mask=(ids != pad).long(), num_beams=beams, do_sample=False, max_new_tokens=steps,
            min_new_tokens=steps,
        )  # fmt: skip
        return [tuple(row[1 : steps + 1]) for row in outputs.tolist()]

    return generate_all


def ctranslate2(converted, compute_type, threads, beams, steps):
    """Load CTranslate2's translator; all sentences are one batch."""
    import ctranslate2

    translator = ctranslate2.Translator(str(converted), device="cpu", compute_type=compute_type, intra_threads=threads)
    words = ["</s>", "<unk>", *(f"w{number}" for number in range(2, VOCABULARY - 1)), "<pad>"]
    token_ids = {word: index for index, word in enumerate(words)}

    def generate_all(sources):
        rows = [[words[token] for token in row] for row in sources]
        outputs = translator.translate_batch(
            rows, beam_size=beams, min_decoding_length=steps, max_decoding_length=steps, max_batch_size=len(rows)
        )
        return [tuple(token_ids[word] for word in output.hypotheses[0]) for output in outputs]

    return generate_all


def candidates(folder, workspace, args):
    """Return the installed libraries; the first is the baseline."""
    settings = (args.threads, args.beams, args.steps)
    libraries = {
        f"transformers {dtype}": Candidate(transformers_generate, (str(folder), dtype, *settings))
        for dtype in ("float32", "bfloat16")
    }
    if importlib.util.find_spec("ctranslate2"):
        from ctranslate2.converters import TransformersConverter

        TransformersConverter(str(folder)).convert(str(workspace / "ct2"))
        for compute_type in ("float32", "int8"):
            libraries[f"CTranslate2 {compute_type}"] = Candidate(
                ctranslate2, (workspace / "ct2", compute_type, *settings)
            )
    else:
        print("skipped: ctranslate2 is not installed")
    return without_slow_bfloat16(libraries | generate.candidates(str(folder), *settings), args.isa)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--sentences", type=int, default=32)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--isa", choices=("avx2",), help="limit all libraries to these instructions")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    limit_isa(args.isa)
    torch.set_num_threads(args.threads)
    rates = {dtype: matmul_rate(dtype) for dtype in ("float32", "bfloat16")}
    with tempfile.TemporaryDirectory() as workspace:
        folder = Path(workspace, "model")
        write_random_model(folder)
        sources = generate.synthetic(str(folder), args.sentences, 20)
        results = run_benchmark(
            candidates(folder, Path(workspace), args),
            sources,
            lambda batch: len(batch) * args.steps,
            rounds=args.rounds,
            check=sources,
            on_round=print,
        )
    identical = generate.exact_matches(results.outputs)
    for line in report.table(
        results.measurements, "tokens/s", {name: f"{n} identical" for name, n in identical.items()}
    ):
        print(line)
    hardware = hardware_info(args.threads, ("clearhead", "torch", "transformers", "ctranslate2"))
    about = {"sentences": len(sources), "steps": args.steps, "beams": args.beams, "same": identical}
    about |= {"matmul_rates": rates, "machine": hardware}
    print(json.dumps(about))
    if args.json:
        report.write_report(args.json, results.measurements, about)
    if args.plot:
        report.plot(args.plot, results.measurements, "tokens/s", f"Generating, {args.beams} beams")


if __name__ == "__main__":
    main()
