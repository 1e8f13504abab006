"""Calls of the pipelines of transformers 4, and the program that records their results.

Run it with transformers 4.57 in front of the path, from the repository's root:

    pip install --no-deps --target /tmp/transformers4 "transformers==4.57.6" "huggingface_hub<1" "tokenizers<0.23"
    PYTHONPATH=/tmp/transformers4:src python tests/integrations/record_transformers4.py
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch

RECORDED = Path(__file__).with_name("transformers4.json")

QUESTION = "Who closed the bridge?"
CONTEXT = "The old bridge was closed by the mayor of Springfield, Ms. O'Neill-Brown, after the unforeseeable storm."
LONG = " ".join([CONTEXT, "A hydroelectric dam, built in 1962, kept the water back.", "It rained for three days."] * 6)
ENGLISH = ["Where can I buy a ticket?", "It is raining."]
TASKS = {
    "summarization": {"prefix": "Good morning! ", "max_length": 7, "num_beams": 2},
    "translation_en_to_de": {"prefix": "Please: ", "early_stopping": True, "max_length": 5},
}

CALLS = {
    "plain": [
        ("translation", {}, (ENGLISH[0],), {}),
        ("translation", {}, (ENGLISH,), {}),
        ("translation", {}, ([ENGLISH[0]],), {}),
        ("translation", {}, (ENGLISH,), {"num_return_sequences": 2, "num_beams": 3}),
        ("translation", {"num_beams": 1}, (ENGLISH[0],), {"max_new_tokens": 3}),
        ("translation_en_to_de", {}, (ENGLISH[1],), {"max_length": 5}),
        ("translation", {}, (ENGLISH[1],), {"src_lang": "en", "tgt_lang": "de", "no_repeat_ngram_size": 1}),
        ("summarization", {}, (ENGLISH,), {"min_length": 9, "max_length": 15}),
        ("text2text-generation", {"batch_size": 2}, (ENGLISH,), {"truncation": True}),
        ("text2text-generation", {}, (ENGLISH[0],), {"num_return_sequences": 4}),
    ],
    "tasks": [(task, {}, (ENGLISH,), {}) for task in ("translation", "text2text-generation", *TASKS)],
    "reader": [
        ("question-answering", {}, (), {"question": QUESTION, "context": CONTEXT}),
        ("question-answering", {}, (), {"question": QUESTION, "context": CONTEXT, "top_k": 5}),
        ("question-answering", {}, (), {"question": QUESTION, "context": CONTEXT, "top_k": 4, "align_to_words": False}),
        ("question-answering", {}, (), {"question": [QUESTION, "When?"], "context": CONTEXT}),
        ("question-answering", {"top_k": 2}, ([{"question": "When?", "context": LONG}],), {"max_answer_len": 3}),
        ("question-answering", {}, (QUESTION, LONG), {"handle_impossible_answer": True, "top_k": 8}),
        ("question-answering", {}, ({"question": QUESTION, "context": LONG},), {"max_seq_len": 40, "doc_stride": 20}),
        ("question-answering", {}, (), {"question": ["When?"], "context": [LONG], "max_seq_len": 30, "top_k": 3}),
    ],
}
"""For each model: task, options of the pipeline, arguments of its call."""


def write_models(folder, translator, minilm):
    """Write the models of CALLS, with the same weights in each version of the libraries.

    Args:
        folder: the folder to write to.
        translator: folder of the translator in the package.
        minilm: folder of all-MiniLM-L6-v2, the encoder of the reader.
    """
    from transformers import AutoModelForQuestionAnswering

    shutil.copytree(translator, folder / "plain")
    shutil.copytree(translator, folder / "tasks")
    config = json.loads((folder / "tasks" / "config.json").read_text(encoding="utf-8"))
    config |= {"task_specific_params": TASKS, "prefix": "Hello. "}
    (folder / "tasks" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tasks" / "generation_config.json").write_text(
        json.dumps({"decoder_start_token_id": 7999, "eos_token_id": 0, "pad_token_id": 7999}), encoding="utf-8"
    )
    reader = AutoModelForQuestionAnswering.from_pretrained(minilm)
    with torch.no_grad():
        weight = torch.randn(2, 384, generator=torch.Generator().manual_seed(0))
        reader.qa_outputs.weight.copy_(weight)
        reader.qa_outputs.bias.zero_()
    reader.save_pretrained(folder / "reader")
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        if (Path(minilm) / name).is_file():
            shutil.copy(Path(minilm) / name, folder / "reader" / name)


def calls(folder, pipeline):
    """Yield the name of each call, and its result.

    Args:
        folder: the folder of `write_models`.
        pipeline: the function that makes a pipeline.
    """
    loaded = {}
    for model, rows in CALLS.items():
        for number, (task, options, arguments, keywords) in enumerate(rows):
            key = (model, task, *options.items())
            if key not in loaded:
                loaded[key] = pipeline(task, model=str(folder / model), device=-1, **options)
            yield f"{model} {number}", loaded[key](*arguments, **keywords)


def main():
    """Record the results of transformers."""
    import transformers

    from clearhead.io import hub

    if not transformers.__version__.startswith("4.57."):
        sys.exit(f"expected transformers 4.57, got {transformers.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder), hub.resolve_model("tatoeba-en-de"), hub.resolve_model("all-MiniLM-L6-v2"))
        results = dict(calls(Path(folder), transformers.pipeline))
    RECORDED.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
