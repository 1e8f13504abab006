"""Tokens per second of generation: ours and other libraries', round by round in turn.

Usage: python benchmarks/generate.py [--beams 4] [--sentences 32] [--steps 32] [--threads 2] [--rounds 5] [--json FILE]

The model has Marian's base size (6 + 6 layers, d_model 512, 58,101 tokens) and random weights; every target has exactly
so many tokens, so that all contestants do the same work. Needs transformers; CTranslate2 is left out where it is not
installed. Each contestant has a process of its own.
"""

import argparse
import importlib.util
import json
import tempfile
from pathlib import Path

import torch

from clearhead.benchmark import generate, report
from clearhead.benchmark.hardware import hardware_info, matmul_rate
from clearhead.benchmark.runner import Candidate, run_benchmark

VOCABULARY = 58101


def made(folder):
    """A random model in transformers' layout, with a tokenizer of as many words."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    torch.manual_seed(0)
    config = transformers.MarianConfig(
        d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8,
        encoder_ffn_dim=2048, decoder_ffn_dim=2048, vocab_size=VOCABULARY, activation_function="swish",
        scale_embedding=True, max_position_embeddings=512, num_beams=1, forced_eos_token_id=None, eos_token_id=0,
        pad_token_id=VOCABULARY - 1, decoder_start_token_id=VOCABULARY - 1,
    )  # fmt: skip
    theirs = transformers.MarianMTModel(config).eval()
    theirs.save_pretrained(folder)
    words = {"</s>": 0, "<unk>": 1} | {f"w{number}": number for number in range(2, VOCABULARY - 1)}
    tokenizer = Tokenizer(models.WordLevel(words | {"<pad>": VOCABULARY - 1}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="</s>"
    ).save_pretrained(folder)


def theirs(folder, dtype, threads, beams, steps):
    """transformers' `generate`, all sentences in a batch, the longest first."""
    import transformers

    torch.set_num_threads(threads)
    model = transformers.MarianMTModel.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    pad = model.config.pad_token_id

    def work(sources):
        longest = max(map(len, sources))
        ids = torch.tensor([row + [pad] * (longest - len(row)) for row in sources])
        found = model.generate(
            input_ids=ids, attention_mask=(ids != pad).long(), num_beams=beams, do_sample=False, max_new_tokens=steps,
            min_new_tokens=steps,
        )  # fmt: skip
        return [tuple(row[1 : steps + 1]) for row in found.tolist()]

    return work


def ctranslate2(converted, kind, threads, beams, steps):
    """CTranslate2's translator, all sentences in a batch."""
    import ctranslate2

    translator = ctranslate2.Translator(str(converted), device="cpu", compute_type=kind, intra_threads=threads)
    words = ["</s>", "<unk>", *(f"w{number}" for number in range(2, VOCABULARY - 1)), "<pad>"]
    places = {word: place for place, word in enumerate(words)}

    def work(sources):
        rows = [[words[token] for token in row] for row in sources]
        found = translator.translate_batch(
            rows, beam_size=beams, min_decoding_length=steps, max_decoding_length=steps, max_batch_size=len(rows)
        )
        return [tuple(places[word] for word in one.hypotheses[0]) for one in found]

    return work


def contestants(folder, place, options):
    """All that are installed; the first is what the others are compared with."""
    how = (options.threads, options.beams, options.steps)
    found = {
        f"transformers {dtype}": Candidate(theirs, (str(folder), dtype, *how)) for dtype in ("float32", "bfloat16")
    }
    if importlib.util.find_spec("ctranslate2"):
        from ctranslate2.converters import TransformersConverter

        TransformersConverter(str(folder)).convert(str(place / "ct2"))
        for kind in ("float32", "int8"):
            found[f"CTranslate2 {kind}"] = Candidate(ctranslate2, (place / "ct2", kind, *how))
    else:
        print("ctranslate2 is not installed: left out")
    return found | generate.candidates(str(folder), *how)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--sentences", type=int, default=32)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rates = {dtype: matmul_rate(dtype) for dtype in ("float32", "bfloat16")}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "model")
        made(folder)
        sources = generate.synthetic(str(folder), options.sentences, 20)
        found = run_benchmark(
            contestants(folder, Path(place), options),
            sources,
            lambda some: len(some) * options.steps,
            rounds=options.rounds,
            check=sources,
            on_round=print,
        )
    same = generate.exact_matches(found.outputs)
    for line in report.table(found.measurements, "tokens/s", {name: f"{n} the same" for name, n in same.items()}):
        print(line)
    here = hardware_info(options.threads, ("clearhead", "torch", "transformers", "ctranslate2"))
    about = {"sentences": len(sources), "steps": options.steps, "beams": options.beams, "same": same}
    about |= {"product_rates": rates, "machine": here}
    print(json.dumps(about))
    if options.json:
        report.write_report(options.json, found.measurements, about)
    if options.plot:
        report.plot(options.plot, found.measurements, "tokens/s", f"Generating, {options.beams} beams")


if __name__ == "__main__":
    main()
