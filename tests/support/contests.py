"""Two processes that write one output, stopped and continued at random moments.

`python -m support.contests encode 200` in tests/ runs 200 contests and prints a line for each.
"""

import contextlib
import filecmp
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from support import forks

SECONDS = 120.0
REFUSAL = re.compile(r"clearhead: error: \S+ is being written by process (\d+) since [-\d]+ [:\d]+; wait until it ends")


def contest(commands, chance, seconds, *, stops=8):
    """Start two commands at random moments, stop and continue them at random; return a status and errors for each.

    Args:
        commands: their arguments.
        chance: the random numbers.
        seconds: how long one of them takes alone; the second starts while the first runs or soon after.
        stops: how often processes are stopped at most.

    Returns:
        For each its process id, status and standard error.
    """
    with tempfile.TemporaryDirectory() as place:
        said = [Path(place, str(number)) for number in range(len(commands))]
        processes = [forks.start(*commands[0], said=said[0])]
        time.sleep(chance.uniform(0, 1.2 * seconds))
        processes.append(forks.start(*commands[1], said=said[1]))
        deadline = time.monotonic() + SECONDS
        while any(process.is_alive() for process in processes):
            assert time.monotonic() < deadline, "a contest did not end"
            process = chance.choice(processes)
            if stops and process.is_alive():
                stops -= 1
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGSTOP)
                    time.sleep(chance.uniform(0, 0.5))
                    os.kill(process.pid, signal.SIGCONT)
            time.sleep(chance.uniform(0, 0.15))
        for process in processes:
            process.join()
        return [
            (process.pid, process.exitcode, path.read_text()) for process, path in zip(processes, said, strict=True)
        ]


def check(results):
    """At least one process succeeds; one that does not is refused, and its message names the other.

    Returns:
        How many were refused.
    """
    (first, *_), (second, *_) = results
    refused = 0
    for own, status, error in results:
        if status != 0:
            found = REFUSAL.search(error)
            assert status == 1, (status, error)
            assert found, error
            assert int(found[1]) == (second if own == first else first), error
            refused += 1
    assert refused < 2, results
    return refused


def same(one, other):
    """Whether two files or folders hold the same; the times and names in a run's notes differ."""
    if one.is_file():
        return filecmp.cmp(one, other, shallow=False)
    names = [sorted(path.relative_to(folder) for path in folder.rglob("*")) for folder in (one, other)]
    return names[0] == names[1] and all(
        same(one / name, other / name) for name in names[0] if (one / name).suffix in (".safetensors", ".json", ".bin")
    )


def alone(output, *command):
    """Run a command without a rival, once, and return the seconds that it took."""
    note = output.with_name(f"{output.name}.seconds")
    if not note.exists():
        start = time.monotonic()
        status, error = forks.run(*command, said=note)
        assert status == 0, error
        note.write_text(str(time.monotonic() - start))
    return float(note.read_text())


def encode(folder, chance, number):
    """A contest of two `encode`, of which each is started with `--resume` or without it."""
    output = folder / f"v-{number}{chance.choice(['.npy', '.jsonl', '.parquet'])}"
    command = ["encode", folder / "texts.txt", "-m", folder / "bert", "-q", "--truncate-dim", 4, "-o", output]
    whole = folder / f"whole{output.suffix}"
    seconds = alone(whole, *command[:-1], whole)
    if chance.random() < 0.5:  # what a killed run left
        process = forks.start(*command, said=folder / "said")
        time.sleep(chance.uniform(0.2, 1.5))
        process.kill()
        process.join()
    if chance.random() < 0.3:
        output.write_bytes(whole.read_bytes())
    resumes = [[*command, *(["--resume"] if chance.random() < 0.6 else [])] for _ in range(2)]
    refused = check(contest(resumes, chance, seconds))
    assert same(output, whole)
    left = [path.name for path in folder.iterdir() if path.name.startswith(f".{output.name}")]
    assert not left, left
    output.unlink()
    return refused


def train(folder, chance, number):
    """A contest of two `train`, of which each is started with `--resume` where there is a checkpoint, or without it."""
    run, whole = folder / f"run-{number}", folder / "whole-run"
    command = ["train", folder / "recipe.yaml"]
    seconds = alone(whole, *command, f"output={whole}")
    if resume := chance.random() < 0.5:
        stopped = forks.start(*command, f"output={run}", said=folder / "said")
        while not (run / "checkpoints" / "state.ckpt").exists() and stopped.is_alive():
            time.sleep(0.02)
        stopped.kill()
        stopped.join()
    arguments = [*command, f"output={run}", *(["--resume"] if resume else [])]
    results = contest([arguments, arguments], chance, seconds)
    # one that comes after the other's end finds the finished run: it may not start another one there
    late = [error for _, status, error in results if status and "holds a run already" in error]
    refused = len(late) if late else check(results)
    assert len(late) < 2, results
    assert same(run / "model.safetensors", whole / "model.safetensors")
    assert not list(run.rglob(".*")), list(run.rglob(".*"))
    shutil.rmtree(run)
    return refused


def export(folder, chance, number):
    """A contest of two `export` of different models to one folder: it holds one of them, whole."""
    output = folder / f"out-{number}"
    models = [folder / "bert", folder / "other"]
    wholes = [folder / f"whole-{model.name}" for model in models]
    for model, whole in zip(models, wholes, strict=True):
        alone(whole, "export", model, whole, "--to", "transformers")
    if chance.random() < 0.5:
        shutil.copytree(chance.choice(wholes), output)
    commands = [["export", model, output, "--to", "transformers"] for model in models]
    # most of the time goes into imports, before the lock: only processes that start together meet there
    refused = check(contest(commands, chance, 0.3))
    assert any(same(output, whole) for whole in wholes)
    left = [path.name for path in folder.iterdir() if path.name.startswith(f".{output.name}")]
    assert not left, left
    shutil.rmtree(output)
    return refused


def mixed(folder, chance, number):
    """A contest of `export` and `train` on one folder: it holds the export or the run, whole."""
    output, whole, run = folder / f"mixed-{number}", folder / "whole-bert", folder / "whole-run"
    commands = {
        "export": ["export", folder / "bert", output, "--to", "transformers"],
        "train": ["train", folder / "recipe.yaml", f"output={output}"],
    }
    alone(whole, "export", folder / "bert", whole, "--to", "transformers")
    alone(run, "train", folder / "recipe.yaml", f"output={run}")
    if chance.random() < 0.5:
        output.mkdir()
    names = chance.sample(sorted(commands), 2)
    # most of the time of the export goes into imports, before the lock
    results = contest([commands[name] for name in names], chance, 0.3 if names[0] == "export" else 2.0)
    # the second one may start after the end of the first, whose files it must not replace
    late = [error for _, status, error in results if status and ("holds a " in error or "holds files that" in error)]
    refused = len(late) or check(results)
    (winner,) = [name for name, (_, status, _) in zip(names, results, strict=True) if status == 0]
    if winner == "export":
        assert same(output, whole)
    else:
        assert same(output / "model.safetensors", run / "model.safetensors")
    left = [path.name for path in folder.iterdir() if path.name.startswith(f".{output.name}")]
    assert not left + list(output.rglob(".*")), left
    shutil.rmtree(output)
    return refused


def prepare(folder):
    """Write the models, texts and the recipe of the contests."""
    import yaml

    from support.tiny import make_bert
    from support.training import spec

    make_bert(folder / "bert")
    make_bert(folder / "other", seed=1, hidden_size=64)
    chance = random.Random(0)
    words = ["the", "old", "bridge", "was", "closed", "after", "storm", "hello", "world"]
    lines = (" ".join(chance.choices(words, k=chance.randint(0, 18))) for _ in range(24_000))
    (folder / "texts.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(spec(folder)))


def main(kind, count, seed=0):
    """Run contests of a kind, and say how they ended."""
    kinds = {"encode": encode, "train": train, "export": export, "mixed": mixed}
    refused = 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prepare(folder)
        for number in range(count):
            refused += kinds[kind](folder, random.Random(f"{kind} {seed} {number}"), number)
            print(f"{kind} {number + 1}: {refused} processes refused so far, no broken file", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *map(int, sys.argv[3:]))
