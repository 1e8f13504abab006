"""The translator of the package, opened by other libraries: are their translations the same?

Usage: python benchmarks/translator.py SOURCE [--lines 200] [--model FOLDER] [--json FILE]

SOURCE holds a sentence a line; its first LINES distinct ones are translated greedily and with 5 beams, in float32:
here, by transformers' MarianMTModel, and by CTranslate2, whose beam search ends by a rule of its own.
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

BATCH, LONGEST = 40, 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--model", default=hub.TRANSLATOR)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    lines = options.source.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    texts = list(dict.fromkeys(lines))[: options.lines]
    folder = hub.resolve_model(options.model)
    ours = TextToText.from_pretrained(folder, precision="float32", device="cpu")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    marian = transformers.MarianMTModel.from_pretrained(folder).eval()
    with tempfile.TemporaryDirectory() as place:
        converter = ctranslate2.converters.TransformersConverter(str(folder))
        translator = ctranslate2.Translator(converter.convert(place, force=True), compute_type="float32")
        figures: dict[str, object] = {"lines": len(texts)}
        for beams in (1, 5):
            found = ours.generate(texts, beam_size=beams, max_new_tokens=LONGEST, return_details=True)
            ends = tokenizer.all_special_tokens
            wanted = [[token for token in output.tokens if token not in ends] for output in found]
            name = "greedy" if beams == 1 else f"{beams} beams"
            theirs = by_transformers(marian, tokenizer, texts, beams)
            figures[f"{name}: the same tokens in transformers"] = same(wanted, theirs)
            theirs = by_ctranslate2(translator, tokenizer, texts, beams)
            figures[f"{name}: the same tokens in CTranslate2"] = same(wanted, theirs)
    for name, figure in figures.items():
        print(f"{name}: {figure}")
    if options.json:
        about = {
            "machine": platform.machine(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "ctranslate2": ctranslate2.__version__,
        }
        options.json.write_text(json.dumps({**about, **figures}, indent=2) + "\n", encoding="utf-8")


def same(ours: list[list[str]], theirs: list[list[str]]) -> int:
    """How many outputs have the same tokens."""
    return sum(one == other for one, other in zip(ours, theirs, strict=True))


def by_transformers(model, tokenizer, texts: list[str], beams: int) -> list[list[str]]:
    """Their tokens, without those that begin, end and fill up."""
    outputs: list[list[str]] = []
    for start in range(0, len(texts), BATCH):
        inputs = tokenizer(texts[start : start + BATCH], return_tensors="pt", padding=True)
        with torch.no_grad():
            ids = model.generate(**inputs, num_beams=beams, max_new_tokens=LONGEST, do_sample=False)
        outputs += [
            [tokenizer.convert_ids_to_tokens(number) for number in row if number not in tokenizer.all_special_ids]
            for row in ids.tolist()
        ]
    return outputs


def by_ctranslate2(translator, tokenizer, texts: list[str], beams: int) -> list[list[str]]:
    """Its tokens."""
    rows = [tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids) for text in texts]
    found = translator.translate_batch(rows, beam_size=beams, max_decoding_length=LONGEST, max_batch_size=BATCH)
    return [output.hypotheses[0] for output in found]


if __name__ == "__main__":
    main()
