"""Compare exported models, opened by other libraries, with the original model on real sentences.

Usage: python benchmarks/accuracy/export.py MODEL... TEXTS [--references FILE] [--number 200] [--json FILE]

MODEL is the name or folder of a model, such as all-MiniLM-L6-v2 or tatoeba-en-de. TEXTS has one text per line; the
references file has the translations of these lines. For encoders, the benchmark reports the largest absolute error, and
in 8 bits the cosine. For translators, it reports the number of identical outputs with greedy search and 5 beams. In 8
bits it adds BLEU and chrF against the references, or against the float32 outputs without references.
"""

import argparse
import json
import tempfile
from pathlib import Path

import ctranslate2
import numpy as np
import onnxruntime
import sentence_transformers
import torch
import transformers

from clearhead import TextEncoder, TextToText
from clearhead.benchmark.hardware import hardware_info
from clearhead.export import libraries
from clearhead.export.onnx import export as to_onnx
from clearhead.metrics.bleu import translation_scores
from clearhead.models.heads import pool
from clearhead.pipelines.auto import load_pipeline

BEAMS, MAX_LENGTH, BATCH_SIZE = (1, 5), 128, 16
PACKAGES = ("clearhead", "torch", "onnxruntime", "ctranslate2", "transformers", "sentence-transformers")


def batches(rows, pad):
    """Yield padded batches of rows of ids, sorted by length: indices, ids and mask."""
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
    for start in range(0, len(order), BATCH_SIZE):
        indices = order[start : start + BATCH_SIZE]
        longest = max(len(rows[index]) for index in indices)
        ids = [[*rows[index], *[pad] * (longest - len(rows[index]))] for index in indices]
        mask = [[*[1] * len(rows[index]), *[0] * (longest - len(rows[index]))] for index in indices]
        yield indices, np.array(ids, dtype=np.int64), np.array(mask, dtype=np.int64)


def pool_states(pipeline, states, mask):
    """Pool hidden states with the model's settings."""
    vectors = pool(states, mask != 0, pipeline.settings.pooling)
    return torch.nn.functional.normalize(vectors, dim=-1) if pipeline.settings.normalize else vectors


def vectors_of(pipeline, compute, texts):
    """Return the vectors of texts, in their order, from a function of ids and mask."""
    rows = [tokens.ids for tokens in pipeline.tokenize(texts)]
    results = np.empty((len(rows), pipeline.width()), np.float32)
    for indices, ids, mask in batches(rows, pipeline.model.config.pad_id):
        results[indices] = compute(ids, mask)
    return results


def by_onnx(pipeline, folder, texts):
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])

    def compute(ids, mask):
        return session.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": mask})[0]

    return vectors_of(pipeline, compute, texts)


def by_ctranslate2(pipeline, folder, texts):
    encoder = ctranslate2.Encoder(str(folder), device="cpu")

    def compute(ids, mask):
        rows = [row[kept != 0].tolist() for row, kept in zip(ids, mask, strict=True)]
        states = torch.from_numpy(np.array(encoder.forward_batch(rows).last_hidden_state))
        return pool_states(pipeline, states, torch.from_numpy(mask)).numpy()

    return vectors_of(pipeline, compute, texts)


def by_transformers(pipeline, folder, texts):
    reference_model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def compute(ids, mask):
        ids, mask = torch.from_numpy(ids), torch.from_numpy(mask)
        return pool_states(
            pipeline, reference_model(input_ids=ids, attention_mask=mask).last_hidden_state, mask
        ).numpy()

    return vectors_of(pipeline, compute, texts)


def by_sentence_transformers(pipeline, folder, texts):
    return sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(texts)


ENCODERS = {
    "onnx": by_onnx,
    "ctranslate2": by_ctranslate2,
    "transformers": by_transformers,
    "sentence-transformers": by_sentence_transformers,
}


def generate_ids(pipeline, texts, beams):
    """Return the output ids of Clearhead, without the end token."""
    results = pipeline.generate(texts, beam_size=beams, max_new_tokens=MAX_LENGTH, return_details=True)
    ends = pipeline.model.config.eos_ids
    return [[token_id for token_id in output.token_ids if token_id not in ends] for output in results]


def outputs_of_onnx(pipeline, folder, texts, beams):
    return generate_ids(TextToText.from_pretrained(folder, runtime="onnx"), texts, beams)


def outputs_of_ctranslate2(pipeline, folder, texts, beams):
    translator = ctranslate2.Translator(str(folder), device="cpu")
    rows = [
        pipeline.tokenizer.ids_to_tokens(tokens.ids) for tokens in pipeline.tokenizer.encode(texts, pipeline.max_length)
    ]
    penalty = pipeline.settings.length_penalty if beams > 1 else 1.0
    options = {"beam_size": beams, "length_penalty": penalty, "max_decoding_length": MAX_LENGTH}
    results = translator.translate_batch(rows, max_batch_size=BATCH_SIZE, **options)
    return [[pipeline.tokenizer.token_id(word) for word in output.hypotheses[0]] for output in results]


def outputs_of_transformers(pipeline, folder, texts, beams):
    reference_model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
    rows = [tokens.ids for tokens in pipeline.tokenizer.encode(texts, pipeline.max_length)]
    results = [[] for _ in rows]
    config = pipeline.model.config
    for indices, ids, mask in batches(rows, config.pad_id):
        options = {"num_beams": beams, "max_new_tokens": MAX_LENGTH, "do_sample": False}
        with torch.inference_mode():
            output_ids = reference_model.generate(
                torch.from_numpy(ids), attention_mask=torch.from_numpy(mask), **options
            )
        for index, row in zip(indices, output_ids[:, 1:].tolist(), strict=True):
            end = next((position for position, token_id in enumerate(row) if token_id in config.eos_ids), len(row))
            results[index] = row[:end]
    return results


TRANSLATORS = {
    "onnx": outputs_of_onnx,
    "ctranslate2": outputs_of_ctranslate2,
    "transformers": outputs_of_transformers,
}


def export_model(model, folder, target_format, int8):
    """Export a model."""
    if target_format == "onnx":
        to_onnx(model, folder, int8=int8)
    elif target_format == "ctranslate2":
        libraries.to_ctranslate2(model, folder, int8=int8)
    else:
        {"transformers": libraries.to_transformers, "sentence-transformers": libraries.to_sentence_transformers}[
            target_format
        ](model, folder)


def compare_vectors(vectors, expected, int8):
    """Compare an encoder's vectors with the original ones."""
    if not int8:
        return {"largest difference": float(np.abs(vectors - expected).max())}
    cosines = (vectors * expected).sum(1) / (np.linalg.norm(vectors, axis=1) * np.linalg.norm(expected, axis=1))
    return {"smallest cosine": float(cosines.min()), "mean cosine": float(cosines.mean())}


def compare_outputs(pipeline, outputs, expected, references, int8):
    """Compare a translator's outputs with the original ones."""
    metrics = {
        "identical outputs": sum(one == other for one, other in zip(outputs, expected, strict=True)),
        "of": len(expected),
    }
    if int8:
        texts, float32_texts = ([pipeline.tokenizer.decode(ids) for ids in rows] for rows in (outputs, expected))
        metrics |= scores(texts, references or float32_texts)
        if references:
            metrics |= {f"{name} in float32": value for name, value in scores(float32_texts, references).items()}
    return metrics


def scores(texts, references):
    results = translation_scores(texts, [references])
    return {"BLEU": results.bleu, "chrF": results.chrf}


def measure(model, texts, references):
    """Export a model to each format; return the measurements by format."""
    pipeline, results = load_pipeline(model), {}
    is_encoder = isinstance(pipeline, TextEncoder)
    formats = ENCODERS if is_encoder else TRANSLATORS
    expected = (
        pipeline.encode(texts) if is_encoder else {beams: generate_ids(pipeline, texts, beams) for beams in BEAMS}
    )
    with tempfile.TemporaryDirectory() as name:
        for target_format, compute in formats.items():
            for int8 in (False, True) if target_format in ("onnx", "ctranslate2") else (False,):
                folder = Path(name) / f"{target_format}-{int8}"
                export_model(model, folder, target_format, int8)
                label = f"{target_format}, 8 bits" if int8 else target_format
                if is_encoder:
                    results[label] = compare_vectors(compute(pipeline, folder, texts), expected, int8)
                    print(f"{model}, {label}: {format_figures(results[label])}", flush=True)
                    continue
                for beams in BEAMS:
                    outputs = compute(pipeline, folder, texts, beams)
                    key = f"{label}, {beams} beam{'s' if beams > 1 else ''}"
                    results[key] = compare_outputs(pipeline, outputs, expected[beams], references, int8)
                    print(f"{model}, {key}: {format_figures(results[key])}", flush=True)
    return results


def format_figures(figures):
    return ", ".join(
        f"{name} {value:.3g}" if abs(value) < 0.1 else f"{name} {value:g}" for name, value in figures.items()
    )


def read_texts(texts, references, limit):
    """Read the first texts that are not empty, and their references."""
    lines = texts.read_text(encoding="utf-8").split("\n")
    reference_lines = references.read_text(encoding="utf-8").split("\n") if references else lines
    pairs = [(line, reference) for line, reference in zip(lines, reference_lines, strict=True) if line.strip()][:limit]
    return [line for line, _ in pairs], [reference for _, reference in pairs] if references else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("texts", type=Path)
    parser.add_argument("--references", type=Path)
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    texts, references = read_texts(args.texts, args.references, args.number)
    results = {model: measure(model, texts, references) for model in args.models}
    if args.json:
        environment = {"machine": hardware_info(torch.get_num_threads(), PACKAGES), "texts": len(texts)}
        args.json.write_text(json.dumps({**environment, "models": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
