"""An export overwrites only earlier exports."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.command import clearhead, refused
from support.models.tiny import make_bert

TO = ("--to", "transformers")


@pytest.fixture
def bert(tmp_path):
    return make_bert(tmp_path / "models" / "bert")


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_export_does_not_overwrite_the_model_or_its_parent(bert, tmp_path, monkeypatch):
    before = files(tmp_path)
    (tmp_path / "link").symlink_to(bert)
    assert "is the model itself" in refused("export", bert, bert, *TO)
    assert "is the model itself" in refused("export", bert, bert / ".." / "bert", *TO)
    assert "is the model itself" in refused("export", bert, tmp_path / "link", *TO)
    assert "contains the model" in refused("export", bert, bert.parent, *TO)
    monkeypatch.chdir(bert.parent)
    assert "is the model itself" in refused("export", "bert", "bert", *TO)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert "is or contains the working directory" in refused("export", bert, ".", *TO)
    (tmp_path / "empty").rmdir()
    (tmp_path / "link").unlink()
    assert files(tmp_path) == before


def test_unrelated_files_are_kept(bert, tmp_path):
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    assert "is a file, but OUT must be a folder" in refused("export", bert, tmp_path / "file", *TO)
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.txt").write_text("mine", encoding="utf-8")
    assert "contains files that no export wrote (thesis.txt)" in refused("export", bert, full, *TO)
    assert files(full) == ["thesis.txt"]


@pytest.mark.slow
def test_empty_folder_and_an_earlier_export_are_replaced(bert, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    for _ in range(2):
        status, _, err = clearhead("export", bert, out, *TO)
        assert status == 0, err
    manifest = json.loads((out / "export.json").read_text(encoding="utf-8"))
    manifest["files"] = [[], {}, 5, *manifest["files"]]  # damaged
    (out / "export.json").write_text(json.dumps(manifest), encoding="utf-8")
    assert clearhead("export", bert, out, *TO)[0] == 0
    (out / "thesis.txt").write_text("mine", encoding="utf-8")
    assert "contains files that no export wrote (thesis.txt)" in refused("export", bert, out, *TO)
    assert (out / "thesis.txt").exists()


AS_NOBODY = """
import contextlib, io, os, sys
import clearhead.cli.main, clearhead.data.corpus, zoneinfo
import clearhead.export.libraries, clearhead.export.onnx, clearhead.export.web.export
from transformers.utils import logging
given, sys.argv = sys.argv, ["clearhead", "export", "--help"]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    clearhead.cli.main.main()
sys.argv = given
if os.geteuid() == 0:  # everything is imported: nobody could not read it
    os.setgid(65534)
    os.setuid(65534)
clearhead.cli.main.main()
"""


@pytest.mark.slow
def test_missing_write_permission_is_an_error():
    with tempfile.TemporaryDirectory() as name:  # pytest's own is for one user alone
        folder = Path(name)
        folder.chmod(0o755)
        make_bert(folder / "bert")
        (folder / "shut").mkdir(mode=0o555)
        command = [sys.executable, "-c", AS_NOBODY, "export", folder / "bert", folder / "shut" / "out", *TO]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1, done
        assert done.stderr.splitlines()[-1] == f"clearhead: error: {folder / 'shut' / 'out'}: Permission denied"
