"""Measure the throughput of encoding with all-MiniLM-L6-v2 in Clearhead and in other libraries.

Usage: python benchmarks/encode.py TEXTS.txt [--number 1000] [--threads 2] [--rounds 5]
       [--isa avx2] [--json FILE] [--plot FILE]

TEXTS.txt has one text per line; the benchmark uses the first NUMBER distinct texts. Requires sentence-transformers.
onnx, onnxscript, onnxruntime and ctranslate2 are optional; missing packages are reported and skipped. Every library
truncates at 256 tokens, uses mean pooling and normalizes the vectors. Each runs in its own process, interleaved by
rounds.
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
from clearhead.benchmark.hardware import hardware_info, limit_isa, matmul_rate, without_slow_bfloat16
from clearhead.benchmark.runner import Candidate, run_benchmark
from clearhead.io import hub

MAX_LENGTH = 256
BATCH_SIZE = 32


def sentence_transformers(folder, dtype, threads):
    """Load sentence-transformers with its defaults, in a dtype."""
    import sentence_transformers

    torch.set_num_threads(threads)
    model_kwargs = {"torch_dtype": getattr(torch, dtype)}
    model = sentence_transformers.SentenceTransformer(folder, device="cpu", model_kwargs=model_kwargs)
    model.max_seq_length = MAX_LENGTH
    return lambda texts: np.asarray(model.encode(texts, normalize_embeddings=True), dtype=np.float32)


def tokenizer_of(folder):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(folder, "tokenizer.json")))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_LENGTH)
    return tokenizer


def batches(tokenizer, texts):
    """Yield batches of texts of similar length, longest first: indices, padded ids and mask."""
    encoded = tokenizer.encode_batch(texts)
    order = sorted(range(len(texts)), key=lambda index: -len(encoded[index].ids))
    for start in range(0, len(order), BATCH_SIZE):
        indices = order[start : start + BATCH_SIZE]
        rows = [encoded[index].ids for index in indices]
        longest = max(map(len, rows))
        ids = np.array([row + [0] * (longest - len(row)) for row in rows])
        keep = np.array([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        yield indices, ids, keep


def mean_pool(hidden, keep):
    summed = (hidden * keep[:, :, None]).sum(axis=1)
    return summed / np.linalg.norm(summed, axis=1, keepdims=True)


def encoder_from(folder, forward):
    """Return an encoding function from a function that maps ids and mask to hidden states."""
    tokenizer = tokenizer_of(folder)

    def encode_texts(texts):
        vectors = np.empty((len(texts), 384), np.float32)
        for indices, ids, keep in batches(tokenizer, texts):
            vectors[indices] = mean_pool(forward(ids, keep), keep)
        return vectors

    return encode_texts


def torch_nn(folder, threads):
    """Load the model as `torch.nn.TransformerEncoder` with its fast path: padded batches, nested tensors inside."""
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

    return encoder_from(folder, forward)


def export_onnx(folder, path):
    """Export transformers' model to an ONNX file."""
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
        (example, example.clone(), example * 0),  # the same tensor twice would become one input
        str(path),
        input_names=["input_ids", "attention_mask", "token_type_ids"],
        output_names=["hidden"],
        dynamic_shapes=(dims, dims, dims),
        dynamo=True,
    )


def onnx_runtime(folder, file, threads):
    """Load a model in ONNX Runtime with all optimizations."""
    import onnxruntime

    session_options = onnxruntime.SessionOptions()
    session_options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(file), session_options, providers=["CPUExecutionProvider"])

    def forward(ids, keep):
        inputs = {"input_ids": ids, "attention_mask": keep, "token_type_ids": np.zeros_like(ids)}
        return session.run(None, inputs)[0]

    return encoder_from(folder, forward)


def ctranslate2(folder, converted, compute_type, threads):
    """Load the encoder in CTranslate2."""
    import ctranslate2

    encoder = ctranslate2.Encoder(str(converted), device="cpu", compute_type=compute_type, intra_threads=threads)
    tokenizer = tokenizer_of(folder)

    def encode_texts(texts):
        vectors = np.empty((len(texts), 384), np.float32)
        for indices, ids, keep in batches(tokenizer, texts):
            rows = [row[: int(kept.sum())].tolist() for row, kept in zip(ids, keep, strict=True)]
            vectors[indices] = mean_pool(np.array(encoder.forward_batch(rows).last_hidden_state), keep)
        return vectors

    return encode_texts


def candidates(folder, workspace, threads, isa):
    """Return the installed libraries that can be limited to `isa`; the first is the baseline."""
    libraries = {
        "sentence-transformers float32": Candidate(sentence_transformers, (folder, "float32", threads)),
        "sentence-transformers bfloat16": Candidate(sentence_transformers, (folder, "bfloat16", threads)),
        "nn.TransformerEncoder float32": Candidate(torch_nn, (folder, threads)),
    }
    if isa:
        print("skipped: ONNX Runtime cannot be limited to an instruction set")
    elif all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime")):
        from onnxruntime.quantization import QuantType, quantize_dynamic

        export_onnx(folder, workspace / "model.onnx")
        quantize_dynamic(workspace / "model.onnx", workspace / "int8.onnx", weight_type=QuantType.QInt8)
        libraries["ONNX Runtime float32"] = Candidate(onnx_runtime, (folder, workspace / "model.onnx", threads))
        libraries["ONNX Runtime int8"] = Candidate(onnx_runtime, (folder, workspace / "int8.onnx", threads))
    else:
        print("skipped: onnx, onnxscript or onnxruntime is not installed")
    if importlib.util.find_spec("ctranslate2"):
        from ctranslate2.converters import TransformersConverter

        TransformersConverter(folder).convert(str(workspace / "ct2"))
        for compute_type in ("float32", "int8"):
            libraries[f"CTranslate2 {compute_type}"] = Candidate(
                ctranslate2, (folder, workspace / "ct2", compute_type, threads)
            )
    else:
        print("skipped: ctranslate2 is not installed")
    return without_slow_bfloat16(libraries | encode.candidates(folder, threads), isa)


def arguments():
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path)
    parser.add_argument("--number", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--isa", choices=("avx2",), help="limit all libraries to these instructions")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    return parser.parse_args()


def main():
    args = arguments()
    limit_isa(args.isa)
    folder = str(hub.resolve_model(hub.DEFAULT_MODEL))
    lines = args.texts.read_text(encoding="utf-8").splitlines()
    texts = list(dict.fromkeys(line for line in lines if line.strip()))[: args.number]
    encoder = TextEncoder.from_pretrained(folder, precision="float32", device="cpu")
    tokens = encode.token_counts(encoder, texts)
    total = sum(tokens.values())
    print(f"{len(texts)} texts of {total / len(texts):.1f} tokens")
    torch.set_num_threads(args.threads)
    rates = {dtype: matmul_rate(dtype) for dtype in ("float32", "bfloat16")}
    with tempfile.TemporaryDirectory() as workspace:
        results = run_benchmark(
            candidates(folder, Path(workspace), args.threads, args.isa),
            texts,
            lambda batch: sum(tokens[text] for text in batch),
            rounds=args.rounds,
            check=texts[:200],
            on_round=print,
        )
    cosines = encode.min_cosines(results.outputs)
    for line in report.table(
        results.measurements, "tokens/s", {name: f"cosine {value:.5f}" for name, value in cosines.items()}
    ):
        print(line)
    flops_per_token = 2 * sum(weight.numel() for weight in encoder.model.encoder.parameters() if weight.ndim == 2)
    shares = {
        figure.name: figure.median * flops_per_token / rates["bfloat16" if "bfloat16" in figure.name else "float32"]
        for figure in results.measurements
        if "clearhead" in figure.name
    }
    for name, share in shares.items():
        print(f"{name}: {share:.0%} of the throughput of a large matmul on this machine")
    packages = ("clearhead", "torch", "transformers", "sentence-transformers", "onnxruntime", "ctranslate2")
    about = {
        "texts": len(texts),
        "tokens": total,
        "cosines": cosines,
        "matmul_rates": rates,
        "shares": shares,
        "machine": hardware_info(args.threads, packages),
    }
    print(json.dumps({key: about[key] for key in ("matmul_rates", "machine")}))
    if args.json:
        report.write_report(args.json, results.measurements, about)
    if args.plot:
        report.plot(
            args.plot,
            results.measurements,
            "tokens/s",
            f"Encoding {len(texts)} texts, {total / len(texts):.0f} tokens",
        )


if __name__ == "__main__":
    main()
