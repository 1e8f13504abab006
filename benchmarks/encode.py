"""Tokens per second of encoding with all-MiniLM-L6-v2: ours and other libraries', round by round in turn.

Usage: python benchmarks/encode.py TEXTS.txt [--number 1000] [--threads 2] [--rounds 5] [--json FILE] [--plot FILE]

TEXTS.txt holds a text a line; the first distinct ones are taken. Needs sentence-transformers, and for all contestants
onnx, onnxscript, onnxruntime and ctranslate2: those that are not installed are left out, and said. All cut texts after
256 tokens, pool by the mean and bring vectors to length 1. Each contestant has a process of its own.
"""

import argparse
import importlib.util
import json
import tempfile
from pathlib import Path

import numpy as np
import torch

from clearhead import TextEncoder
from clearhead.benchmark import encode, report
from clearhead.benchmark.hardware import hardware_info, matmul_rate
from clearhead.benchmark.runner import Candidate, run_benchmark
from clearhead.io import hub

LONGEST = 256
BATCH = 32


def sentence_transformers(folder, dtype, threads):
    """sentence-transformers as it is by default, or in bfloat16."""
    import sentence_transformers

    torch.set_num_threads(threads)
    kind = {"torch_dtype": getattr(torch, dtype)}
    model = sentence_transformers.SentenceTransformer(folder, device="cpu", model_kwargs=kind)
    model.max_seq_length = LONGEST
    return lambda texts: np.asarray(model.encode(texts, normalize_embeddings=True), dtype=np.float32)


def tokenizer_of(folder):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(folder, "tokenizer.json")))
    tokenizer.no_padding()
    tokenizer.enable_truncation(LONGEST)
    return tokenizer


def batches(tokenizer, texts):
    """The places of texts of like length, with their ids, batch by batch, longest first; what any user would write."""
    encoded = tokenizer.encode_batch(texts)
    order = sorted(range(len(texts)), key=lambda place: -len(encoded[place].ids))
    for start in range(0, len(order), BATCH):
        places = order[start : start + BATCH]
        rows = [encoded[place].ids for place in places]
        longest = max(map(len, rows))
        ids = np.array([row + [0] * (longest - len(row)) for row in rows])
        keep = np.array([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        yield places, ids, keep


def pooled(hidden, keep):
    summed = (hidden * keep[:, :, None]).sum(axis=1)
    return summed / np.linalg.norm(summed, axis=1, keepdims=True)


def batched(folder, forward):
    """Work from a function of ids and mask to hidden states."""
    tokenizer = tokenizer_of(folder)

    def work(texts):
        vectors = np.empty((len(texts), 384), np.float32)
        for places, ids, keep in batches(tokenizer, texts):
            vectors[places] = pooled(forward(ids, keep), keep)
        return vectors

    return work


def convert(folder, threads):
    """`torch.nn.TransformerEncoder` with its fast path: padded batches, nested tensors inside."""
    from clearhead.checkpoints import load_encoder
    from clearhead.checkpoints.torch_nn import convert

    torch.set_num_threads(threads)
    model, _ = load_encoder(Path(folder))
    model.eval()
    stack = convert.to_torch_nn(model.encoder).eval()

    def forward(ids, keep):
        with torch.inference_mode():
            x = model.embedding(torch.from_numpy(ids))
            return stack(x, src_key_padding_mask=torch.from_numpy(keep) == 0).numpy()

    return batched(folder, forward)


def exported(folder, into):
    """The model as transformers' own code computes it, as an ONNX file."""
    from transformers import AutoModel

    class Hidden(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = AutoModel.from_pretrained(folder, attn_implementation="eager")

        def forward(self, input_ids, attention_mask, token_type_ids):
            return self.model(input_ids, attention_mask, token_type_ids).last_hidden_state

    example = torch.ones(2, 9, dtype=torch.long)
    dims = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    torch.onnx.export(
        Hidden().eval(),
        (example, example.clone(), example * 0),  # one tensor twice would be one input
        str(into),
        input_names=["input_ids", "attention_mask", "token_type_ids"],
        output_names=["hidden"],
        dynamic_shapes=(dims, dims, dims),
        dynamo=True,
    )


def onnx_runtime(folder, file, threads):
    """ONNX Runtime with all its optimisations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def forward(ids, keep):
        given = {"input_ids": ids, "attention_mask": keep, "token_type_ids": np.zeros_like(ids)}
        return session.run(None, given)[0]

    return batched(folder, forward)


def ctranslate2(folder, converted, kind, threads):
    """CTranslate2's encoder."""
    import ctranslate2

    encoder = ctranslate2.Encoder(str(converted), device="cpu", compute_type=kind, intra_threads=threads)
    tokenizer = tokenizer_of(folder)

    def work(texts):
        vectors = np.empty((len(texts), 384), np.float32)
        for places, ids, keep in batches(tokenizer, texts):
            rows = [row[: int(kept.sum())].tolist() for row, kept in zip(ids, keep, strict=True)]
            vectors[places] = pooled(np.array(encoder.forward_batch(rows).last_hidden_state), keep)
        return vectors

    return work


def contestants(folder, place, threads):
    """All that are installed; the first is what the others are compared with."""
    found = {
        "sentence-transformers float32": Candidate(sentence_transformers, (folder, "float32", threads)),
        "sentence-transformers bfloat16": Candidate(sentence_transformers, (folder, "bfloat16", threads)),
        "nn.TransformerEncoder float32": Candidate(convert, (folder, threads)),
    }
    if all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime")):
        from onnxruntime.quantization import QuantType, quantize_dynamic

        exported(folder, place / "model.onnx")
        quantize_dynamic(place / "model.onnx", place / "int8.onnx", weight_type=QuantType.QInt8)
        found["ONNX Runtime float32"] = Candidate(onnx_runtime, (folder, place / "model.onnx", threads))
        found["ONNX Runtime int8"] = Candidate(onnx_runtime, (folder, place / "int8.onnx", threads))
    else:
        print("onnx, onnxscript or onnxruntime is not installed: left out")
    if importlib.util.find_spec("ctranslate2"):
        from ctranslate2.converters import TransformersConverter

        TransformersConverter(folder).convert(str(place / "ct2"))
        for kind in ("float32", "int8"):
            found[f"CTranslate2 {kind}"] = Candidate(ctranslate2, (folder, place / "ct2", kind, threads))
    else:
        print("ctranslate2 is not installed: left out")
    return found | encode.candidates(folder, threads)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path)
    parser.add_argument("--number", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    folder = str(hub.resolve_model(hub.DEFAULT_MODEL))
    lines = options.texts.read_text(encoding="utf-8").splitlines()
    texts = list(dict.fromkeys(line for line in lines if line.strip()))[: options.number]
    encoder = TextEncoder.from_pretrained(folder, precision="float32", device="cpu")
    tokens = encode.token_counts(encoder, texts)
    total = sum(tokens.values())
    print(f"{len(texts)} texts of {total / len(texts):.1f} tokens")
    torch.set_num_threads(options.threads)
    rates = {dtype: matmul_rate(dtype) for dtype in ("float32", "bfloat16")}
    with tempfile.TemporaryDirectory() as place:
        found = run_benchmark(
            contestants(folder, Path(place), options.threads),
            texts,
            lambda some: sum(tokens[text] for text in some),
            rounds=options.rounds,
            check=texts[:200],
            on_round=print,
        )
    closest = encode.min_cosines(found.outputs)
    for line in report.table(
        found.measurements, "tokens/s", {name: f"cosine {value:.5f}" for name, value in closest.items()}
    ):
        print(line)
    products = 2 * sum(weight.numel() for weight in encoder.model.encoder.parameters() if weight.ndim == 2)
    shares = {
        figure.name: figure.median * products / rates["bfloat16" if "bfloat16" in figure.name else "float32"]
        for figure in found.measurements
        if "clearhead" in figure.name
    }
    for name, share in shares.items():
        print(f"{name}: {share:.0%} of the rate of a large matrix product here")
    packages = ("clearhead", "torch", "transformers", "sentence-transformers", "onnxruntime", "ctranslate2")
    here = hardware_info(options.threads, packages)
    about = {
        "texts": len(texts),
        "tokens": total,
        "cosines": closest,
        "product_rates": rates,
        "shares": shares,
        "machine": here,
    }
    print(json.dumps({key: about[key] for key in ("product_rates", "machine")}))
    if options.json:
        report.write_report(options.json, found.measurements, about)
    if options.plot:
        report.plot(
            options.plot,
            found.measurements,
            "tokens/s",
            f"Encoding {len(texts)} texts, {total / len(texts):.0f} tokens",
        )


if __name__ == "__main__":
    main()
