"""Every flag and every file with a wrong value: one line, the flag's name, the right code."""

import re
from pathlib import Path
from typing import Any

import click
import pytest

from gpuyard.cli import other_words
from gpuyard.cli.app import ALIASES, COMMANDS, cli
from tests.shared.cli.in_process import end_of

pytestmark = pytest.mark.usefixtures("alone")

RUN_FLAGS = [
    (["--gpus", "all,options=x"], "options= cannot be used"),
    (["--gpus", "device=0,count=2"], "only one of device=0, 2"),
    (["-e", "=x"], "-e '=x' has no name"),
    (["-e", "NVIDIA_VISIBLE_DEVICES=0"], "use --gpus device=0 instead"),
    (["--env-file", "/no/such"], "--env-file /no/such: no such file"),
    (["-v", "/data"], "-v '/data' is no mount"),
    (["-v", "/a:/b:sticky"], "option 'sticky' cannot be used here"),
    (["--shm-size", "big"], "--shm-size: 'big' is not a size"),
    (["-m", "-1"], "--memory: '-1' is not a size"),
    (["--memory", "8 apples"], "--memory: '8 apples' is not a size"),
    (["--cpus", "many"], "'--cpus': 'many' is not a valid float"),
    (["--ulimit", "memlock"], "--ulimit 'memlock' is none"),
    (["--tmpfs", "here"], "--tmpfs 'here' is no absolute path"),
    (["-l", "=x"], "-l '=x' has no key"),
    (["--pull", "often"], "'--pull': 'often' is not one of"),
    (["--stop-timeout", "soon"], "'--stop-timeout': 'soon' is not a valid float"),
    (["--gpu-model", ""], "--gpu-model is empty"),
    (["--gpu-model", "A100,H100"], "--gpu-model: 'A100,H100' is no GPU model"),
    (["--gpu-memory", "lots"], "--gpu-memory: 'lots' is no GPU memory"),
    (["--gpu-memory", "0"], "--gpu-memory: '0' is no GPU memory"),
    (["--gpu-memory", ""], "--gpu-memory is empty"),
    (["--cuda", "new"], "--cuda: 'new' is no CUDA version"),
    (["--cuda", "12GB"], "--cuda: '12GB' is no CUDA version"),
    (["--where", "gpu-memory"], "--where: 'gpu-memory' compares with nothing: quote the line"),
    (["--where", ""], "--where is empty"),
    (["--where", "a=b=c"], "holds two comparisons"),
    (["--where", "a==b"], "write =, not =="),
    (["--where", "gpu-memory>=lots"], "'lots' cannot be ordered"),
    (["--where", "zone=a,b"], "alternatives are written with |"),
    (["--where", "zone='a'"], "write the value without quotes"),
    (["--where", "=a"], "does not start with a label"),
    (["--where", "a\x1b=b"], "holds a character that no label has"),
    (["--where", "zone=a", "--where", "zone=b"], "zone=a and zone=b can never hold together"),
    (["--where", "gpu-memory<24", "--gpu-memory", "40"], "can never hold together"),
    (["--where", "gpu-cuda-version<12", "--cuda", "12.1"], "can never hold together"),
    (["--where", "!zone", "--where", "zone=a"], "can never hold together"),
    (["--prefer", "zone"], "--prefer: 'zone' compares with nothing"),
    (["--tolerate", "everything"], "write cordon or cordon:REASON"),
    (["--tolerate", "cordon:"], "write cordon or cordon:REASON"),
    (["--priority", "high"], "'--priority': 'high' is not a valid integer"),
    (["--time", "soon"], "--time: 'soon' is not a duration"),
    (["--retries", "many"], "'--retries': 'many' is not a valid integer"),
    (["--nodes", "two"], "'--nodes': 'two' is not a valid integer"),
    (["--not-before", "0001-01-01"], "--not-before: '0001-01-01' is no time that"),
    (["--deadline", "2030-02-30"], "--deadline: '2030-02-30' is no time; write 2h"),
    (["--after", ":ended"], "--after ':ended' names no job"),
    (["--enforcement", "polite"], "'--enforcement': 'polite' is not one of"),
    (["--runtime", "runc"], "--runtime runc cannot be used here"),
    (["-i"], "-i cannot be used here"),
    (["--gpu-modell", "A100"], "did you mean --gpu-model?"),
    (["--dryrun"], "did you mean --dry-run?"),
    (["--gpus"], "option '--gpus' requires an argument"),
]


@pytest.mark.parametrize(("command", "code"), [("run", 125), ("submit", 2)])
@pytest.mark.parametrize(("flags", "told"), RUN_FLAGS, ids=lambda value: str(value)[:40])
def test_a_flag_of_a_job(
    flags: list[str], told: str, command: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    image = [] if flags[-1] == "--gpus" else ["busybox"]
    ended = end_of(capsys, command, *flags, *image)
    assert (ended.code, ended.out) == (code, "")
    assert told.lower() in ended.err.lower()
    assert ended.err.startswith("gpuyard: ") and ended.err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (["jobs", "--state", "lost"], "--state 'lost' is none; the states are queued"),
        (["jobs", "--since", "whenever"], "--since 'whenever' is no time; write 90s"),
        (["jobs", "--sort", "size"], "'--sort': 'size' is not one of"),
        (["jobs", "--limit", "0"], "'--limit'"),
        (["jobs", "--wach"], "did you mean --watch?"),
        (["cancel", "--state", "lost"], "--state 'lost' is none"),
        (["cancel", "--state", "failed"], "jobs in it are over"),
        (["cancel"], "name jobs by ID, or choose them"),
        (["wait", "--timeout", "soon", "x"], "--timeout: 'soon' is not a duration"),
        (["logs", "--attempt", "0", "x"], "'--attempt'"),
        (["events", "--kind", "fail"], "--kind 'fail' is none; did you mean failed?"),
        (["events", "x", "-A"], "ID and -A are both given"),
        (["why"], "missing argument 'ID'"),
        (["node"], "missing argument 'NAME'"),
        (["cordon"], "missing argument 'NAME'"),
        (["cordon", "n1", "--gpus", "1"], "did you mean --gpu?"),
        (["drain", "n1", "--deadline", "soon"], "--deadline: 'soon' is not a duration"),
        (["drain", "n1", "--gpu", "0"], "no such option: --gpu"),
        (["delete-tenant", "t"], "tenant t would be deleted; -y says yes"),
        (["apply"], "-f FILE is missing"),
        (["apply", "tenants.yaml"], "write gpuyard apply -f tenants.yaml"),
        (["apply", "--template", "dev"], "--template takes a NAME"),
        (["apply", "--template", "huge", "t"], "'huge' is not one of"),
        (["apply", "--template", "dev", "Big Team"], "'Big Team' is no tenant's name"),
        (["config", "set", "colour", "red"], "'colour' is not one of"),
        (["config", "set", "tenant", "Big Team"], "tenant 'Big Team'"),
        (["config", "set", "url", "http://x"], "the url from the command line is not one"),
        (["config", "use-context", "lab"], "there is no context 'lab'"),
        (["config", "st"], "did you mean set?"),
        (["completion", "csh"], "'csh' is not one of"),
        (["jobs", "--bogus"], "no such option: --bogus; see 'gpuyard jobs --help'"),
        (["jobs", "--st"], "did you mean --state?"),
        (["jobs", "train"], "argument (train); one alone: gpuyard job ID"),
        (["nodes", "n1"], "argument (n1); one alone: gpuyard node NAME"),
        (
            ["logs", "--tail", "5", "x"],
            "no such option: --tail; '| tail -n N' keeps the last lines",
        ),
        (["submit", "-G", "2", "busybox"], "no such option: -G; ask for GPUs with --gpus"),
        (["submit", "--partition", "a", "busybox"], "choose nodes by --where"),
        (["nodes", "--partition", "a"], "no such option: --partition; see 'gpuyard nodes --help'"),
        (["jbos"], "did you mean jobs?"),
        (["stop", "x"], "no such command: stop; did you mean cancel?"),
        (["sbatch", "x"], "no such command: sbatch; did you mean submit?"),
        (["delete", "x"], "no such command: delete; did you mean cancel?"),
        (["bogus"], "no such command: bogus; see 'gpuyard --help'"),
        (["tennants"], "did you mean tenants?"),
        (["--tenant", "Big Team", "why", "x"], "tenant 'Big Team' (from argument)"),
        (["--context", "lab", "nodes"], "there is no context 'lab'"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else value[:20],
)
def test_a_line_of_another_command(
    line: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = end_of(capsys, *line)
    assert (ended.code, ended.out) == (2, "")
    assert told.lower() in ended.err.lower()
    assert ended.err.startswith("gpuyard: ") and ended.err.count("\n") == 1


def test_a_word_of_another_program_stands_for_one_of_ours() -> None:
    assert set(other_words.COMMANDS.values()) <= set(COMMANDS)
    assert not set(other_words.COMMANDS) & {*COMMANDS, *ALIASES}
    ctx = click.Context(cli)
    for name, flags in other_words.FLAGS.items():
        command = cli.get_command(ctx, name)
        assert command is not None
        ours = {flag for param in command.params for flag in [*param.opts, *param.secondary_opts]}
        assert not ours & set(flags)
        assert {word for text in flags.values() for word in re.findall(r"--[a-z-]+", text)} <= ours


EMPTY_FLAGS = [
    *("--gpus", "--env", "--env-file", "--volume", "--workdir", "--user", "--name", "--shm-size"),
    *("--memory", "--network", "--publish", "--ulimit", "--tmpfs", "--label", "--runtime"),
    *("--file", "--gpu-model", "--gpu-memory", "--cuda", "--where", "--prefer", "--node"),
    *("--tolerate", "--time", "--array", "--after", "--id", "--tenant", "--url", "--context"),
    *("--not-before", "--deadline"),
]
"""docker refuses most of them; a few it takes for none, where a variable was meant to be set."""


@pytest.mark.parametrize("flag", EMPTY_FLAGS)
def test_an_empty_value_of_a_job_is_never_dropped(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = end_of(capsys, "run", flag, "", "busybox")
    advice = "write --gpus 0 for none" if flag == "--gpus" else "give it a value, or leave it out"
    assert (ended.code, ended.out) == (125, "")
    assert ended.err == f"gpuyard: {flag} is empty; {advice}\n"


def test_every_flag_of_a_job_that_takes_a_text_is_in_that_table() -> None:
    from gpuyard.cli.run import run

    said_otherwise = {"--entrypoint", "--timeout"}
    texts = {
        max(param.opts, key=len)
        for param in run.params
        if isinstance(param, click.Option) and param.type is click.STRING
    }
    assert texts - said_otherwise == set(EMPTY_FLAGS)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (["--tenant", "", "jobs"], "--tenant is empty; give it a value"),
        (["jobs", "--node", ""], "--node is empty"),
        (["jobs", "--name", ""], "--name is empty"),
        (["jobs", "--user", ""], "--user is empty"),
        (["jobs", "--state", ""], "--state is empty"),
        (["jobs", "--state", "queued,"], "--state '' is none"),
        (["jobs", "--since", ""], "--since is empty"),
        (["cancel", "--state", "", "-y"], "--state is empty"),
        (["cancel", "--state", ",", "-y"], "--state '' is none"),
        (["cancel", "--user", "", "-y"], "--user is empty"),
        (["cancel", ""], "ID is empty; a job's id or name is needed"),
        (["wait", "a", ""], "ID is empty; a job's id or name is needed"),
        (["job", ""], "ID is empty; a job's id or name is needed"),
        (["why", ""], "ID is empty; a job's id or name is needed"),
        (["logs", ""], "ID is empty; a job's id or name is needed"),
        (["events", ""], "ID is empty; a job's id or name is needed"),
        (["events", "--kind", ","], "--kind '' is none"),
        (["node", ""], "NAME is empty; a name is needed"),
        (["forget", "", "-y"], "NAME is empty; a name is needed"),
        (["cordon", "n1", "--gpu", ""], "--gpu is empty"),
        (["drain", "n1", "--deadline", ""], "--deadline is empty"),
        (["delete-tenant", "", "-y"], "NAME is empty; a name is needed"),
        (["apply", "-f", ""], "--file is empty"),
        (["up", "--dir", "", "--fresh"], "--dir is empty"),
        (["down", "--dir", ""], "--dir is empty"),
        (["submit", ""], "IMAGE is empty; an image is needed"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else value[:20],
)
def test_an_empty_value_elsewhere(
    line: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = end_of(capsys, *line)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert ended.err.startswith(f"gpuyard: {told}")


def test_empty_texts_that_mean_something_pass(capsys: pytest.CaptureFixture[str]) -> None:
    ended = end_of(capsys, "run", "--entrypoint", "", "-e", "A=", "busybox", "")
    assert ended.code == 3 and "cannot reach" in ended.err
    ended = end_of(capsys, "cancel", "a", "--reason", "")
    assert ended.code == 3 and "cannot reach" in ended.err


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (["run", "--env-file", "/dev/zero", "busybox"], 125),
        (["run", "-f", "/dev/zero"], 125),
        (["submit", "-f", "/dev/zero"], 2),
        (["apply", "-f", "/dev/zero"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_file_without_an_end(
    line: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = end_of(capsys, *line)
    assert (ended.code, ended.err.count("\n")) == (code, 1)
    assert "/dev/zero: it has more than 1048576 bytes" in ended.err


def test_settings_and_credentials_that_are_too_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "long"
    path.write_text("# x\n" * 300_000)
    monkeypatch.setenv("GPUYARD_CREDENTIALS", str(path))
    ended = end_of(capsys, "jobs")
    assert ended.code == 3
    assert f"the credentials file {path} cannot be read: it has more than" in ended.err
    monkeypatch.setenv("GPUYARD_CONFIG", str(path))
    ended = end_of(capsys, "jobs")
    assert (ended.code, ended.err) == (
        2,
        f"gpuyard: {path} cannot be read: it has more than 1048576 bytes\n",
    )


BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(f'*{chr(97 + i)}' for _ in range(10))}]\n"
    for i in range(9)
)
FILES: list[tuple[Any, str]] = [
    ("", "there is no {what} in it"),
    ("- a\n", "a {what} is a map"),
    ("a: 1\na: 2\n", 'found duplicate key "a"'),
    ('{"a": 1, "a": 2}', "stands twice"),
    ("a: [1\n", "line"),
    (b"a: \xff\xfe\n", "it is not UTF-8 (byte 3)"),
    ("a: " + "[" * 40 + "]" * 40 + "\n", "nested more than 32 deep"),
    ("a: &x 1\nb: [" + ",".join(["*x"] * 101) + "]\n", "more than 100 aliases"),
    ("a: &x [*x]\n", "its aliases refer to themselves"),
    (BOMB, "its aliases refer to themselves"),
    ("a: !!python/object:os.system x\n", "could not determine a constructor"),
    ("a: 2026-01-01\n", "a is a date; put it in quotes"),
    ("1: x\n", "the key 1 in the {what} is no text"),
    ("a: *nowhere\n", "found undefined alias"),
]


@pytest.mark.parametrize(
    ("what", "command", "code"),
    [("job", ["submit"], 2), ("job", ["run"], 125), ("tenant", ["apply"], 2)],
    ids=["submit", "run", "apply"],
)
@pytest.mark.parametrize(("content", "told"), FILES, ids=lambda value: str(value)[:16])
def test_a_file(
    content: str | bytes,
    told: str,
    what: str,
    command: list[str],
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    ended = end_of(capsys, *command, "-f", str(path))
    assert (ended.code, ended.out) == (code, "")
    assert told.format(what=what) in ended.err
    assert ended.err.count("\n") == 1


def test_the_traps_of_yaml_1_1_are_none(tmp_path: Path) -> None:
    from gpuyard.cli.spec_files import read_documents, read_specs

    path = tmp_path / "file.yaml"
    path.write_text("on: off\nports: [1000:10]\nname: no\nmax_runtime: 1:30:00\ncpus: 010\n")
    assert read_specs(str(path)) == [
        {"on": "off", "ports": ["1000:10"], "name": "no", "max_runtime": "1:30:00", "cpus": 10}
    ]
    path.write_text("tenant: on\nmodels: [y, n]\nper_job: {max_runtime: 24:00:00}\n")
    assert read_documents(str(path), "tenant", "tenant: …") == [
        {"tenant": "on", "models": ["y", "n"], "per_job": {"max_runtime": "24:00:00"}}
    ]


def test_documents_that_do_not_belong_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file.yaml"
    path.write_text("tenant: a\n---\ntenant: b\n---\ntenant: a\n")
    assert "tenant a stands twice" in end_of(capsys, "apply", "-f", str(path)).err
    path.write_text("image: busybox\n")
    assert "'gpuyard submit -f FILE'" in end_of(capsys, "apply", "-f", str(path)).err


def test_contradictory_lines_of_a_flag_and_a_shorthand_name_both(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ("--gpu-model", "A100", "--where", "gpu-name!=*")
    ended = end_of(capsys, "run", *flags, "busybox")
    assert ended.code == 125
    assert "gpu-name!=*" in ended.err and "can never hold together" in ended.err
