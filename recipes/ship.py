"""Makes the package's translator of a trained one: the same folder with its weights in float16, half the size.

Usage: python recipes/ship.py runs/translator src/clearhead/checkpoints/shipped/tatoeba-en-de

Prints the hash that belongs into MODEL_CARD.md. config.json says float32, which other libraries then compute in.
"""

import hashlib
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from clearhead import TextToText
from clearhead.io.json import read_json, write_json
from clearhead.io.safetensors import write_weights


def main(run: Path, out: Path) -> None:
    TextToText.from_pretrained(run).save_pretrained(out)
    weights = out / "model.safetensors"
    write_weights(weights, {name: tensor.to(torch.float16) for name, tensor in load_file(weights).items()})
    config = out / "config.json"
    write_json(config, {**read_json(config), "dtype": "float32"})
    print(f"sha256 {hashlib.sha256(weights.read_bytes()).hexdigest()}")
    print(f"{sum(path.stat().st_size for path in out.iterdir()) / 1e6:.2f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
