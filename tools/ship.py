"""Write a trained translator into the package with float16 weights, at half the size.

Usage: python tools/ship.py runs/translator src/clearhead/checkpoints/shipped/tatoeba-en-de

Prints the hash for MODEL_CARD.md. config.json has the dtype float32, so other libraries compute in float32.
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
