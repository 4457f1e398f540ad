"""The console script: it names the entry modules, and imports only the one that is chosen."""

import subprocess
import sys
from pathlib import Path

import pytest

from maxtrain import __version__
from maxtrain.cli import VERBS, main
from maxtrain.core.errors import ExitCode


def test_every_verb_is_an_entry_module(root: Path) -> None:
    package = root / "maxtrain"
    for verb in VERBS:
        module, inner = package / f"{verb}.py", package / verb / "__main__.py"
        assert module.is_file() or inner.is_file(), verb
        text = (module if module.is_file() else inner).read_text(encoding="utf-8")
        assert '__name__ == "__main__"' in text, verb


def test_every_entry_module_is_a_verb(root: Path) -> None:
    package = root / "maxtrain"
    entries = {path.parent.name for path in package.glob("*/__main__.py")}
    entries |= {path.stem for path in package.glob("*.py")} - {"__init__", "__main__", "cli"}
    assert entries == set(VERBS)


def test_help_names_every_verb_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["-h"], ["help"]):
        assert main(words) == 0
        out = capsys.readouterr().out
        for verb, text in VERBS.items():
            assert f"  {verb}" in out
            assert text in out
        assert "examples:" in out
        codes = [line.split()[0] for line in out.split("exit codes:")[1].splitlines() if line.strip()]
        assert codes == [*(str(int(code)) for code in ExitCode), "130,"]


def test_without_a_verb_the_help_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("usage: maxtrain")


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"maxtrain {__version__}\n"


@pytest.mark.parametrize(
    ("verb", "cure"),
    [
        ("trian", "did you mean train?"),
        ("tokeniser", "did you mean tokenizer?"),
        ("xyzzy", "known verbs: config, plan"),
    ],
)
def test_an_unknown_verb_names_the_nearest(verb: str, cure: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error: {verb}: unknown verb; {cure}")
    assert captured.err.count("\n") == 1


def test_a_verb_runs_its_module_and_gives_its_exit_code(root: Path) -> None:
    program = (
        "import sys\n"
        "from maxtrain.cli import main\n"
        "assert len(sys.modules) < 200, len(sys.modules)\n"
        "assert not {'jax', 'pydantic', 'numpy'} & set(sys.modules)\n"
        "main(sys.argv[1:])\n"
    )
    words = ["config", "validate", str(root / "configs" / "learning" / "first.yaml")]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{words[2]}: valid\n", "")
    command = [sys.executable, "-m", "maxtrain", *words, "model.d_model=-1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {words[2]}: model.d_model = -1: should be a whole number > 0")


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_every_verb_has_examples_and_needs_no_jax(verb: str) -> None:
    program = (
        "import sys\n"
        "from maxtrain.cli import main\n"
        "try:\n"
        "    main([sys.argv[1], '--help'])\n"
        "finally:\n"
        "    assert not {'jax', 'flax', 'grain', 'matplotlib', 'tensorstore'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, verb], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "example" in done.stdout
    assert f"python -m maxtrain.{verb} " in done.stdout
    assert "exit codes:" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "--step", "0"],
        ["checkpoint", "list"],
        ["checkpoint", "verify"],
        ["profile"],
        ["report"],
        ["generate", "--prompt", "a"],
    ],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("there", [False, True], ids=["missing", "empty"])
def test_a_run_that_is_not_there_is_one_line_and_code_2(words: list[str], there: bool, tmp_path: Path) -> None:
    run = tmp_path / "nowhere"
    if there:
        run.mkdir()
    command = [sys.executable, "-m", "maxtrain", *words, str(run)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {run}")
    assert done.stderr.count("\n") == 1
