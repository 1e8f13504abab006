"""Compare the translations of the bundled translator with those of other libraries that load the same weights.

Usage: python benchmarks/accuracy/translator.py SOURCE [--lines 200] [--model FOLDER] [--json FILE]

SOURCE has one sentence per line. The first LINES distinct sentences are translated greedily and with 5 beams in
float32, by Clearhead, by transformers' MarianMTModel and by CTranslate2. CTranslate2 stops beam search by another rule.
"""

import argparse
import json
import platform
import tempfile
from pathlib import Path

import ctranslate2
import torch
import transformers

from clearhead import TextToText
from clearhead.io import hub

BATCH_SIZE, MAX_LENGTH = 40, 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--model", default=hub.TRANSLATOR)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    lines = args.source.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    texts = list(dict.fromkeys(lines))[: args.lines]
    folder = hub.resolve_model(args.model)
    pipeline = TextToText.from_pretrained(folder, precision="float32", device="cpu")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    marian = transformers.MarianMTModel.from_pretrained(folder).eval()
    with tempfile.TemporaryDirectory() as workspace:
        converter = ctranslate2.converters.TransformersConverter(str(folder))
        translator = ctranslate2.Translator(converter.convert(workspace, force=True), compute_type="float32")
        figures: dict[str, object] = {"lines": len(texts)}
        for beams in (1, 5):
            outputs = pipeline.generate(texts, beam_size=beams, max_new_tokens=MAX_LENGTH, return_details=True)
            special_tokens = tokenizer.all_special_tokens
            expected = [[token for token in output.tokens if token not in special_tokens] for output in outputs]
            name = "greedy" if beams == 1 else f"{beams} beams"
            others = by_transformers(marian, tokenizer, texts, beams)
            figures[f"{name}: identical to transformers"] = count_identical(expected, others)
            others = by_ctranslate2(translator, tokenizer, texts, beams)
            figures[f"{name}: identical to CTranslate2"] = count_identical(expected, others)
    for name, figure in figures.items():
        print(f"{name}: {figure}")
    if args.json:
        environment = {
            "machine": platform.machine(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "ctranslate2": ctranslate2.__version__,
        }
        args.json.write_text(json.dumps({**environment, **figures}, indent=2) + "\n", encoding="utf-8")


def count_identical(first: list[list[str]], second: list[list[str]]) -> int:
    """Return the number of outputs with identical tokens."""
    return sum(one == other for one, other in zip(first, second, strict=True))


def by_transformers(model, tokenizer, texts: list[str], beams: int) -> list[list[str]]:
    """Return the tokens of transformers, without special tokens."""
    outputs: list[list[str]] = []
    for start in range(0, len(texts), BATCH_SIZE):
        inputs = tokenizer(texts[start : start + BATCH_SIZE], return_tensors="pt", padding=True)
        with torch.no_grad():
            ids = model.generate(**inputs, num_beams=beams, max_new_tokens=MAX_LENGTH, do_sample=False)
        outputs += [
            [tokenizer.convert_ids_to_tokens(token_id) for token_id in row if token_id not in tokenizer.all_special_ids]
            for row in ids.tolist()
        ]
    return outputs


def by_ctranslate2(translator, tokenizer, texts: list[str], beams: int) -> list[list[str]]:
    """Return the tokens of CTranslate2."""
    rows = [tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids) for text in texts]
    outputs = translator.translate_batch(
        rows, beam_size=beams, max_decoding_length=MAX_LENGTH, max_batch_size=BATCH_SIZE
    )
    return [output.hypotheses[0] for output in outputs]


if __name__ == "__main__":
    main()
