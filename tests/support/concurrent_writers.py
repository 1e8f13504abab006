"""Run two processes that write the same output, stopped and continued at random times.

`python -m support.concurrent_writers encode 200` in tests/ runs 200 races and prints a line for each.
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


def race(commands, generator, seconds, *, stops=8):
    """Start two commands, and stop and continue them at random times.

    Args:
        commands: arguments of both commands.
        generator: random number generator.
        seconds: duration of one command; the second starts while the first runs or soon after.
        stops: maximum number of stops.

    Returns:
        Process id, status and standard error of each command.
    """
    with tempfile.TemporaryDirectory() as workspace:
        log = [Path(workspace, str(number)) for number in range(len(commands))]
        processes = [forks.start(*commands[0], log=log[0])]
        time.sleep(generator.uniform(0, 1.2 * seconds))
        processes.append(forks.start(*commands[1], log=log[1]))
        deadline = time.monotonic() + SECONDS
        while any(process.is_alive() for process in processes):
            assert time.monotonic() < deadline, "a race did not end"
            process = generator.choice(processes)
            if stops and process.is_alive():
                stops -= 1
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGSTOP)
                    time.sleep(generator.uniform(0, 0.5))
                    os.kill(process.pid, signal.SIGCONT)
            time.sleep(generator.uniform(0, 0.15))
        for process in processes:
            process.join()
        return [(process.pid, process.exitcode, path.read_text()) for process, path in zip(processes, log, strict=True)]


def check(results):
    """Check that a process succeeds or is refused with the id of the other; return the number of refused ones."""
    (first, *_), (second, *_) = results
    num_refused = 0
    for process_id, status, error in results:
        if status != 0:
            match = REFUSAL.search(error)
            assert status == 1, (status, error)
            assert match, error
            assert int(match[1]) == (second if process_id == first else first), error
            num_refused += 1
    assert num_refused < 2, results
    return num_refused


def same(one, other):
    """Return whether two files or folders are equal, except for the times and names in the metadata of a run."""
    if one.is_file():
        return filecmp.cmp(one, other, shallow=False)
    names = [sorted(path.relative_to(folder) for path in folder.rglob("*")) for folder in (one, other)]
    return names[0] == names[1] and all(
        same(one / name, other / name) for name in names[0] if (one / name).suffix in (".safetensors", ".json", ".bin")
    )


def run_alone(output, *command):
    """Run a command alone, once, and return its duration in seconds."""
    note = output.with_name(f"{output.name}.seconds")
    if not note.exists():
        start = time.monotonic()
        status, error = forks.run(*command, log=note)
        assert status == 0, error
        note.write_text(str(time.monotonic() - start))
    return float(note.read_text())


def encode(folder, generator, number):
    """Race two `encode` commands, each with or without `--resume` or `--overwrite`."""
    output = folder / f"v-{number}{generator.choice(['.npy', '.jsonl', '.parquet'])}"
    command = ["encode", folder / "texts.txt", "-m", folder / "bert", "-q", "--truncate-dim", 4, "-o", output]
    complete = folder / f"whole{output.suffix}"
    seconds = run_alone(complete, *command[:-1], complete)
    flags = [["--resume"], ["--overwrite"]]
    if generator.random() < 0.5:  # start from the files of a killed run, which are not discarded without a flag
        process = forks.start(*command, log=folder / "log")
        time.sleep(generator.uniform(0.2, 1.5))
        process.kill()
        process.join()
    else:
        flags.append([])
    if generator.random() < 0.3:
        output.write_bytes(complete.read_bytes())
    commands = [[*command, *generator.choice(flags)] for _ in range(2)]
    num_refused = check(race(commands, generator, seconds))
    assert same(output, complete)
    leftovers = [path.name for path in folder.iterdir() if path.name.startswith(f".{output.name}")]
    assert not leftovers, leftovers
    output.unlink()
    return num_refused


def train(folder, generator, number):
    """Race two `train` commands, with `--resume` if there is a checkpoint."""
    run, complete = folder / f"run-{number}", folder / "whole-run"
    command = ["train", folder / "recipe.yaml"]
    seconds = run_alone(complete, *command, f"output={complete}")
    if resume := generator.random() < 0.5:
        stopped = forks.start(*command, f"output={run}", log=folder / "log")
        while not (run / "checkpoints" / "state.ckpt").exists() and stopped.is_alive():
            time.sleep(0.02)
        stopped.kill()
        stopped.join()
    arguments = [*command, f"output={run}", *(["--resume"] if resume else [])]
    results = race([arguments, arguments], generator, seconds)
    # a process that starts after the other's end finds a finished run and must not replace it
    late = [error for _, status, error in results if status and "already contains a run" in error]
    num_refused = len(late) if late else check(results)
    assert len(late) < 2, results
    assert same(run / "model.safetensors", complete / "model.safetensors")
    assert not list(run.rglob(".*")), list(run.rglob(".*"))
    shutil.rmtree(run)
    return num_refused


def export(folder, generator, number):
    """Race two `export` commands of different models to one folder; one complete export remains."""
    output = folder / f"out-{number}"
    models = [folder / "bert", folder / "other"]
    exports = [folder / f"whole-{model.name}" for model in models]
    for model, complete in zip(models, exports, strict=True):
        run_alone(complete, "export", model, complete, "--to", "transformers")
    if generator.random() < 0.5:
        shutil.copytree(generator.choice(exports), output)
    commands = [["export", model, output, "--to", "transformers"] for model in models]
    # imports before the lock take most of the time: only processes that start together compete
    num_refused = check(race(commands, generator, 0.3))
    assert any(same(output, complete) for complete in exports)
    leftovers = [path.name for path in folder.iterdir() if path.name.startswith(f".{output.name}")]
    assert not leftovers, leftovers
    shutil.rmtree(output)
    return num_refused


def mixed(folder, generator, number):
    """Race `export` and `train` on one folder; the complete export or run remains."""
    output, complete, run = folder / f"mixed-{number}", folder / "whole-bert", folder / "whole-run"
    commands = {
        "export": ["export", folder / "bert", output, "--to", "transformers"],
        "train": ["train", folder / "recipe.yaml", f"output={output}"],
    }
    run_alone(complete, "export", folder / "bert", complete, "--to", "transformers")
    run_alone(run, "train", folder / "recipe.yaml", f"output={run}")
    if generator.random() < 0.5:
        output.mkdir()
    names = generator.sample(sorted(commands), 2)
    # imports before the lock take most of the time of the export
    results = race([commands[name] for name in names], generator, 0.3 if names[0] == "export" else 2.0)
    # the second process may start after the end of the first, and must not replace its files
    late = [
        error
        for _, status, error in results
        if status and ("already contains a " in error or "contains files that" in error)
    ]
    num_refused = len(late) or check(results)
    (winner,) = [name for name, (_, status, _) in zip(names, results, strict=True) if status == 0]
    if winner == "export":
        assert same(output, complete)
    else:
        assert same(output / "model.safetensors", run / "model.safetensors")
    leftovers = [path.name for path in folder.iterdir() if path.name.startswith(f".{output.name}")]
    assert not leftovers + list(output.rglob(".*")), leftovers
    shutil.rmtree(output)
    return num_refused


def prepare(folder):
    """Write the models, texts and recipe for the races."""
    import yaml

    from support.data.training import spec
    from support.models.tiny import make_bert

    make_bert(folder / "bert")
    make_bert(folder / "other", seed=1, hidden_size=64)
    generator = random.Random(0)
    words = ["the", "old", "bridge", "was", "closed", "after", "storm", "hello", "world"]
    lines = (" ".join(generator.choices(words, k=generator.randint(0, 18))) for _ in range(24_000))
    (folder / "texts.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(spec(folder)))


def main(kind, count, seed=0):
    """Run races of a kind and print the results."""
    kinds = {"encode": encode, "train": train, "export": export, "mixed": mixed}
    num_refused = 0
    with tempfile.TemporaryDirectory() as workspace:
        folder = Path(workspace)
        prepare(folder)
        for number in range(count):
            num_refused += kinds[kind](folder, random.Random(f"{kind} {seed} {number}"), number)
            print(f"{kind} {number + 1}: {num_refused} processes refused so far, no broken file", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *map(int, sys.argv[3:]))
