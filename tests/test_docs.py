"""The documentation: current, without dead links, and with commands that the program knows."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest
from ruamel.yaml import YAML

from gpuyard.cli.app import ALIASES, cli
from gpuyard.model.intake import parse_spec

ROOT: Final = Path(__file__).resolve().parent.parent
README: Final = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES: Final = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_COMMANDS: Final = [
    ROOT / "README.md",
    *(
        ROOT / "docs" / name
        for name in (
            "start.md",
            "queue.md",
            "enqueue.md",
            "gangs.md",
            "fleet.md",
            "backup.md",
            "simulate.md",
            "faq.md",
        )
    ),
]
_BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_LINK: Final = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_STARTS: Final = {";", "&&", "||", "|", "(", "$", "!"}
_ENDS: Final = {";", "&&", "||", "|", ")", "#", "<", ">"}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path, *languages: str) -> Iterator[str]:
    for language, text in _BLOCK.findall(path.read_text(encoding="utf-8")):
        if language in languages:
            yield text


def test_the_reference_is_what_the_code_says() -> None:
    script = ROOT / "scripts" / "generate_reference.py"
    done = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_every_link_leads_somewhere(path: Path) -> None:
    text = _BLOCK.sub("", path.read_text(encoding="utf-8"))
    for target in _LINK.findall(text):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        other = (path.parent / file).resolve() if file else path
        assert other.exists(), f"{name(path)} links to {target}"
        if anchor:
            assert anchor in anchors(other), f"{name(path)} links to {target}"


def anchors(path: Path) -> set[str]:
    """The headings as the usual renderers name them."""
    text = _BLOCK.sub("", path.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_json_and_jobs_in_yaml_can_be_read(path: Path) -> None:
    for text in blocks(path, "json"):
        json.loads(text)
    for text in blocks(path, "yaml"):
        document = YAML(typ="safe", pure=True).load(text)
        if "image" in document:
            parse_spec(document)


def command_lines() -> Iterator[tuple[str, str]]:
    """Each `gpuyard …` of the pages' shell blocks, and what their prompts show."""
    for path in WITH_COMMANDS:
        typed = "".join(blocks(path, "sh"))
        typed += "\n".join(
            line[2:]
            for text in blocks(path, "")
            for line in text.splitlines()
            if line.startswith("$ ")
        )
        for line in typed.replace("\\\n", " ").splitlines():
            if "gpuyard" in line:
                yield name(path), line


@pytest.mark.parametrize(("page", "line"), list(command_lines()))
def test_every_command_shown_is_one_that_the_program_takes(page: str, line: str) -> None:
    for words in commands(line):
        parse(words)


def commands(line: str) -> Iterator[list[str]]:
    """The words of each gpuyard command in a line, up to what belongs to the shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.wordchars += "/.:=,$@%~…-"
    words: list[str] | None = None
    is_start = True
    for word in [*lexer, ";"]:
        if words is not None:
            if word not in _ENDS:
                words.append(word)
                continue
            yield words
            words = None
        elif is_start and word.removeprefix(".venv/bin/") == "gpuyard":
            words = []
        is_start = word in _STARTS or word.endswith("=$")


def parse(words: list[str]) -> None:
    """Raises click's own error for a command or a flag that is not there; runs nothing."""
    root = click.Context(cli, info_name="gpuyard")
    command: click.Command = cli
    rest, context = words, root
    while isinstance(command, click.Group):
        context = command.make_context("gpuyard", list(rest), parent=context.parent)
        rest = [*context._protected_args, *context.args]
        if not rest:
            return
        found = command.get_command(context, ALIASES.get(rest[0], rest[0]))
        assert found is not None, f"no command {rest[0]}"
        command, rest = found, rest[1:]
    command.make_context(command.name, rest, parent=context)


def test_the_parser_of_this_test_sees_a_wrong_flag() -> None:
    with pytest.raises(click.NoSuchOption):
        parse(["nodes", "--no-such-flag"])
    with pytest.raises(AssertionError):
        parse(["nosuch"])


def test_the_fleet_file_has_the_processes_that_the_readme_shows() -> None:
    shown = re.findall(r"GPU (\d+): pid (\d+) of (\w+)(?: in container (\S+))? holds", README)
    (text,) = (text for text in blocks(ROOT / "docs" / "start.md", "yaml") if "fleet.yaml" in text)
    fleet = YAML(typ="safe").load(text)
    planted = [
        (str(one["gpu"]), str(one["pid"]), one["user"], one.get("container", ""))
        for node in fleet["nodes"]
        for one in node.get("processes", ())
    ]
    assert shown == planted
