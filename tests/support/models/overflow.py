"""Checkpoints whose activations overflow, for every text or for texts with one word."""

import json

import torch
from safetensors.torch import load_file, save_file

from clearhead.checkpoints import load_tokenizer
from support.models.folders import marian

LARGE = 1e38


def change_weights(folder, change):
    """Apply a function to the tensors of a checkpoint."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def everywhere(folder):
    """Scale all matrices so that the attention scores overflow for every text."""

    def change(tensors):
        for name, tensor in tensors.items():
            if tensor.ndim == 2 and "embed" not in name and "shared" not in name:
                tensors[name] = tensor * 1e30

    return change_weights(folder, change)


def at_token(folder, number, matrix):
    """Scale the embedding of one token so that only texts with this token overflow."""

    def change(tensors):
        tensors[matrix][number] = torch.full_like(tensors[matrix][number], LARGE)

    return change_weights(folder, change)


def at_word(folder, word, matrix="embeddings.word_embeddings.weight"):
    """Scale the embedding of a word in the vocabulary of a BERT checkpoint."""
    vocabulary = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    tensors = load_file(folder / "model.safetensors")
    (name,) = [name for name in tensors if name.endswith(matrix)]
    return at_token(folder, vocabulary.index(word), name)


def translator(folder):
    """Write a Marian checkpoint that overflows for the word storm and not for the word hello."""
    sizes = {"vocab_size": 150, "decoder_vocab_size": 150}  # <pad> is 149 in the target's vocabulary
    marian(folder, separate=True, share_encoder_decoder_embeddings=False, **sizes)
    tokenizer = load_tokenizer(folder, "marian")
    storm, hello = tokenizer.encode(["storm", "hello"])
    number = next(number for number in storm.ids if number not in hello.ids)
    return at_token(folder, number, "model.encoder.embed_tokens.weight")


def large_norm(folder):
    """Scale the last layer norm so that the vectors are finite but their norm overflows."""

    def change(tensors):
        last = max(name for name in tensors if name.endswith("output.LayerNorm.weight") and "attention" not in name)
        tensors[last] = tensors[last] * 1e25

    return change_weights(folder, change)


def strict_json(text):
    """Parse JSON and reject NaN and Infinity, which Python accepts."""

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)
