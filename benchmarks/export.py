"""Exported models, each opened by its own library, against the model itself, on real sentences.

Usage: python benchmarks/export.py MODEL... TEXTS [--references FILE] [--number 200] [--json FILE]

MODEL is all-MiniLM-L6-v2, tatoeba-en-de, or others; TEXTS holds a text a line, and the references file, for a
translator, its translation on the same line. Of an encoder the largest difference of a number to the model's, and in
8 bits the cosine; of a translator the outputs with the same tokens, greedily and by 5 beams, and in 8 bits BLEU and
chrF against the references, or else against the outputs of float32.
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

BEAMS, LONGEST, BATCH = (1, 5), 128, 16
PACKAGES = ("clearhead", "torch", "onnxruntime", "ctranslate2", "transformers", "sentence-transformers")


def batches(rows, pad):
    """Rows of ids in padded batches: the places of the rows, ids, mask."""
    order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
    for start in range(0, len(order), BATCH):
        some = order[start : start + BATCH]
        longest = max(len(rows[place]) for place in some)
        ids = [[*rows[place], *[pad] * (longest - len(rows[place]))] for place in some]
        mask = [[*[1] * len(rows[place]), *[0] * (longest - len(rows[place]))] for place in some]
        yield some, np.array(ids, dtype=np.int64), np.array(mask, dtype=np.int64)


def pooled(made, states, mask):
    """Hidden states as the model's vectors."""
    vectors = pool(states, mask != 0, made.settings.pooling)
    return torch.nn.functional.normalize(vectors, dim=-1) if made.settings.normalize else vectors


def vectors_of(made, compute, texts):
    """Vectors of texts, in their order, by a function of ids and mask."""
    rows = [tokens.ids for tokens in made.tokenize(texts)]
    found = np.empty((len(rows), made.width()), np.float32)
    for places, ids, mask in batches(rows, made.model.config.pad_id):
        found[places] = compute(ids, mask)
    return found


def by_onnx(made, folder, texts):
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])

    def compute(ids, mask):
        return session.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": mask})[0]

    return vectors_of(made, compute, texts)


def by_ctranslate2(made, folder, texts):
    encoder = ctranslate2.Encoder(str(folder), device="cpu")

    def compute(ids, mask):
        rows = [row[kept != 0].tolist() for row, kept in zip(ids, mask, strict=True)]
        states = torch.from_numpy(np.array(encoder.forward_batch(rows).last_hidden_state))
        return pooled(made, states, torch.from_numpy(mask)).numpy()

    return vectors_of(made, compute, texts)


def by_transformers(made, folder, texts):
    theirs = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def compute(ids, mask):
        ids, mask = torch.from_numpy(ids), torch.from_numpy(mask)
        return pooled(made, theirs(input_ids=ids, attention_mask=mask).last_hidden_state, mask).numpy()

    return vectors_of(made, compute, texts)


def by_sentence_transformers(made, folder, texts):
    return sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(texts)


ENCODERS = {
    "onnx": by_onnx,
    "ctranslate2": by_ctranslate2,
    "transformers": by_transformers,
    "sentence-transformers": by_sentence_transformers,
}


def ours(made, texts, beams):
    """The ids of outputs, without the end."""
    found = made.generate(texts, beam_size=beams, max_new_tokens=LONGEST, return_details=True)
    ends = made.model.config.eos_ids
    return [[number for number in one.token_ids if number not in ends] for one in found]


def outputs_of_onnx(made, folder, texts, beams):
    return ours(TextToText.from_pretrained(folder, runtime="onnx"), texts, beams)


def outputs_of_ctranslate2(made, folder, texts, beams):
    translator = ctranslate2.Translator(str(folder), device="cpu")
    rows = [made.tokenizer.ids_to_tokens(tokens.ids) for tokens in made.tokenizer.encode(texts, made.max_length)]
    penalty = made.settings.length_penalty if beams > 1 else 1.0
    told = {"beam_size": beams, "length_penalty": penalty, "max_decoding_length": LONGEST}
    found = translator.translate_batch(rows, max_batch_size=BATCH, **told)
    return [[made.tokenizer.token_id(word) for word in one.hypotheses[0]] for one in found]


def outputs_of_transformers(made, folder, texts, beams):
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
    rows = [tokens.ids for tokens in made.tokenizer.encode(texts, made.max_length)]
    found = [[] for _ in rows]
    config = made.model.config
    for places, ids, mask in batches(rows, config.pad_id):
        told = {"num_beams": beams, "max_new_tokens": LONGEST, "do_sample": False}
        with torch.inference_mode():
            made_ids = theirs.generate(torch.from_numpy(ids), attention_mask=torch.from_numpy(mask), **told)
        for place, row in zip(places, made_ids[:, 1:].tolist(), strict=True):
            end = next((at for at, number in enumerate(row) if number in config.eos_ids), len(row))
            found[place] = row[:end]
    return found


TRANSLATORS = {
    "onnx": outputs_of_onnx,
    "ctranslate2": outputs_of_ctranslate2,
    "transformers": outputs_of_transformers,
}


def write(model, folder, to, int8):
    """Exports a model."""
    if to == "onnx":
        to_onnx(model, folder, int8=int8)
    elif to == "ctranslate2":
        libraries.to_ctranslate2(model, folder, int8=int8)
    else:
        {"transformers": libraries.to_transformers, "sentence-transformers": libraries.to_sentence_transformers}[to](
            model, folder
        )


def of_vectors(found, wanted, int8):
    """What is said of an encoder's vectors."""
    if not int8:
        return {"largest difference": float(np.abs(found - wanted).max())}
    cosines = (found * wanted).sum(1) / (np.linalg.norm(found, axis=1) * np.linalg.norm(wanted, axis=1))
    return {"smallest cosine": float(cosines.min()), "mean cosine": float(cosines.mean())}


def of_outputs(made, found, wanted, references, int8):
    """What is said of a translator's outputs."""
    told = {"same tokens": sum(one == other for one, other in zip(found, wanted, strict=True)), "of": len(wanted)}
    if int8:
        texts, whole = ([made.tokenizer.decode(ids) for ids in rows] for rows in (found, wanted))
        told |= scores(texts, references or whole)
        if references:
            told |= {f"{name} in float32": value for name, value in scores(whole, references).items()}
    return told


def scores(texts, references):
    found = translation_scores(texts, [references])
    return {"BLEU": found.bleu, "chrF": found.chrf}


def tried(model, texts, references):
    """For each format what was found, by name."""
    made, found = load_pipeline(model), {}
    encodes = isinstance(made, TextEncoder)
    formats = ENCODERS if encodes else TRANSLATORS
    wanted = made.encode(texts) if encodes else {beams: ours(made, texts, beams) for beams in BEAMS}
    with tempfile.TemporaryDirectory() as name:
        for to, compute in formats.items():
            for int8 in (False, True) if to in ("onnx", "ctranslate2") else (False,):
                folder = Path(name) / f"{to}-{int8}"
                write(model, folder, to, int8)
                label = f"{to}, 8 bits" if int8 else to
                if encodes:
                    found[label] = of_vectors(compute(made, folder, texts), wanted, int8)
                    print(f"{model}, {label}: {said(found[label])}", flush=True)
                    continue
                for beams in BEAMS:
                    outputs = compute(made, folder, texts, beams)
                    key = f"{label}, {beams} beam{'s' if beams > 1 else ''}"
                    found[key] = of_outputs(made, outputs, wanted[beams], references, int8)
                    print(f"{model}, {key}: {said(found[key])}", flush=True)
    return found


def said(figures):
    return ", ".join(
        f"{name} {value:.3g}" if abs(value) < 0.1 else f"{name} {value:g}" for name, value in figures.items()
    )


def read(texts, references, number):
    """The first texts that are not empty, and their references."""
    lines = texts.read_text(encoding="utf-8").split("\n")
    others = references.read_text(encoding="utf-8").split("\n") if references else lines
    pairs = [(line, other) for line, other in zip(lines, others, strict=True) if line.strip()][:number]
    return [line for line, _ in pairs], [other for _, other in pairs] if references else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("texts", type=Path)
    parser.add_argument("--references", type=Path)
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    texts, references = read(asked.texts, asked.references, asked.number)
    found = {model: tried(model, texts, references) for model in asked.models}
    if asked.json:
        about = {"machine": hardware_info(torch.get_num_threads(), PACKAGES), "texts": len(texts)}
        asked.json.write_text(json.dumps({**about, "models": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
