"""Check a result of the speedrun: the rules, the share of the longer recipe's time, and BLEU on the test set.

Usage: python recipes/speedrun/check.py SOURCE REFERENCE [key=value ...] [--recipe FILE] [--runs FOLDER] [--share 0.25]

SOURCE and REFERENCE are test_2016_flickr.en and .de. The recipe is trained with seeds 1, 2 and 3. Each is scored
once. Finished runs in FOLDER are kept, and interrupted ones are resumed. key=value changes this and the longer
recipe, such as a path. The exit status is 0 if the recipe keeps the rules, needs at most this share of the time and
reaches the score.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from compare import RECIPE, Change, time_per_update

from clearhead import tune_process
from clearhead.checkpoints import load_seq2seq
from clearhead.io.json import read_json
from clearhead.train.recipe.load import read_recipe
from clearhead.train.recipe.recipe import Recipe

LONGER = RECIPE.parents[1] / "datasets" / "multi30k-en-de.yaml"
SEEDS = (1, 2, 3)
MAX_PARAMETERS = 2_700_000


def broken_rules(own: Recipe, longer: Recipe) -> list[str]:
    """Return the rules that a recipe breaks."""
    data = longer.data.model_copy(update={"batch_tokens": own.data.batch_tokens})
    rules = {
        "the data are those of the longer recipe": own.data == data,
        "the tokenizer is that of the longer recipe": own.tokenizer == longer.tokenizer,
        "outputs have 5 beams": own.objective.beam_size == 5,
        "training starts without the weights of another model": own.model.init_from is None
        and own.model.init_encoder_from is None
        and own.model.init_decoder_from is None
        and own.regularize.distillation is None,
    }
    return [rule for rule, kept in rules.items() if not kept]


def share_of_time(path: Path, own: Recipe, longer: Recipe, keys: list[str], updates: int, rounds: int = 3) -> float:
    """Return the time of a run as a share of the longer recipe's, from the medians of alternate short runs."""
    assert own.training.steps
    assert longer.training.steps
    times: dict[Path, list[float]] = {path: [], LONGER: []}
    for _ in range(rounds):
        for recipe, values in times.items():
            values.append(time_per_update(Change(), updates, keys, recipe))
    short, long = (statistics.median(values) for values in times.values())
    for name, milliseconds, recipe in (("this", short, own), ("the longer", long, longer)):
        print(f"{name} recipe: {milliseconds:.0f} ms per update, {recipe.training.steps:,} updates")
    return short * own.training.steps / (long * longer.training.steps)


def score(path: Path, folder: Path, seed: int, keys: list[str], source: Path, reference: Path) -> float:
    """Train a seed, unless its run is finished, and return BLEU on the test set."""
    clearhead = [sys.executable, "-m", "clearhead"]
    result = folder / "training.json"
    if not result.exists() or not read_json(result)["finished"]:
        words = ["train", path, f"output={folder}", f"seed={seed}", *keys, "--resume"]
        subprocess.run([*clearhead, *words], check=True)
    model, _ = load_seq2seq(folder)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if parameters > MAX_PARAMETERS:
        raise SystemExit(f"{folder}: the model has {parameters:,} parameters; at most {MAX_PARAMETERS:,} are allowed")
    words = ["evaluate", "translation", source, "--reference", reference, "--model", folder, "--tokenize", "none"]
    done = subprocess.run(
        [*clearhead, *words, "--precision", "auto", "--json", "--quiet"], check=True, stdout=subprocess.PIPE, text=True
    )
    return float(json.loads(done.stdout)["bleu"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("reference", type=Path)
    parser.add_argument("keys", nargs="*", help="key=value")
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("--runs", type=Path, default=Path("runs/speedrun-check"))
    parser.add_argument("--share", type=float, default=0.25, help="largest share of the longer recipe's time")
    parser.add_argument("--bleu", type=float, default=41.0, help="lowest mean of the three scores")
    parser.add_argument("--timed", type=int, default=40, help="updates in each of three measurements of the time")
    args = parser.parse_args()
    tune_process()
    own, longer = (read_recipe(path, args.keys) for path in (args.recipe, LONGER))
    broken = broken_rules(own, longer)
    for rule in broken:
        print(f"broken rule: {rule}")
    share = share_of_time(args.recipe, own, longer, args.keys, args.timed)
    print(f"{share:.3f} of the longer recipe's time; at most {args.share:g}")
    scores = [score(args.recipe, args.runs / str(seed), seed, args.keys, args.source, args.reference) for seed in SEEDS]
    mean = statistics.mean(scores)
    print(f"BLEU {', '.join(f'{value:.2f}' for value in scores)}: mean {mean:.2f}; at least {args.bleu:g}")
    return int(bool(broken) or share > args.share or mean < args.bleu)


if __name__ == "__main__":
    sys.exit(main())
