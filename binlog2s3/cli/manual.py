"""The manual pages: the text of the help, as roff for `man`. Pure.

A page has only the words of the help, so that they cannot differ.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from click import Argument, Command, Parameter

SECTION = 1
_HEADINGS = {"Examples": "EXAMPLES", "Exit codes": "EXIT STATUS"}
_HELP = ("-h, --help", "Show the help and exit.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The program and its `commands` by name, in the order of the help."""

    name: str
    version: str
    itself: Command
    commands: Mapping[str, Command]

    def pages(self) -> Iterator[tuple[str, str]]:
        """Each page's file name and text: the program's own first, then one for each command."""
        yield f"{self.name}.{SECTION}", self.overview()
        for command in self.commands:
            yield f"{self.name}-{command}.{SECTION}", self.page(command)

    def overview(self) -> str:
        """The page of the program itself: which commands there are."""
        parts = self._begin(self.name, self.itself, f"{self.name} COMMAND [OPTIONS]")
        parts.append(".SH COMMANDS")
        for name, command in self.commands.items():
            parts += [".TP", f"\\fB{_text(self.name)}\\-{_text(name)}\\fR({SECTION})"]
            parts.append(_line(_summary(command)))
        parts += _options(self.itself.params)
        parts += _epilog(self.itself.epilog or "")
        others = [f"{self.name}-{name}" for name in self.commands]
        return "\n".join([*parts, *_see_also(others)]) + "\n"

    def page(self, name: str) -> str:
        """The page of one command. Raises KeyError if there is no such command."""
        command = self.commands[name]
        arguments = [p for p in command.params if isinstance(p, Argument)]
        words = [f"{self.name} {name}", *(str(p.metavar or p.opts[0].upper()) for p in arguments)]
        usage = " ".join([*words, "[OPTIONS]"])
        parts = self._begin(f"{self.name}-{name}", command, usage)
        parts += _options([p for p in command.params if not isinstance(p, Argument)])
        parts += _epilog(command.epilog or "")
        others = [self.name, *(f"{self.name}-{other}" for other in self.commands if other != name)]
        return "\n".join([*parts, *_see_also(others)]) + "\n"

    def _begin(self, title: str, command: Command, usage: str) -> list[str]:
        made = f"{self.name} {self.version}"
        head = f'.TH "{_text(title.upper())}" {SECTION} "" "{_text(made)}" "User Commands"'
        # no hyphenation, so that names and options can be copied
        parts = [head, ".nh", ".ad l", ".SH NAME", f"{_text(title)} \\- {_text(_summary(command))}"]
        parts += [".SH SYNOPSIS", _line(usage), ".SH DESCRIPTION"]
        paragraphs = (command.help or "").split("\n\n")
        for number, paragraph in enumerate(paragraphs):
            parts += [".PP"] if number else []
            parts.append(_line(" ".join(paragraph.split())))
        return parts


def _summary(command: Command) -> str:
    """The first sentence of a command's help, without full stop, with a small first letter."""
    first = " ".join((command.help or "").split("\n\n")[0].split()).rstrip(".")
    return first[:1].lower() + first[1:]


def _options(params: Sequence[Parameter]) -> list[str]:
    parts = [".SH OPTIONS"]
    for param in params:
        names = ", ".join(f"\\fB{_text(name)}\\fR" for name in param.opts)
        metavar = f" \\fI{_text(param.metavar)}\\fR" if param.metavar else ""
        parts += [".TP", f"{names}{metavar}", _line(getattr(param, "help", None) or "")]
    names = ", ".join(f"\\fB{_text(name)}\\fR" for name in _HELP[0].split(", "))
    return [*parts, ".TP", names, _line(_HELP[1])]


def _epilog(epilog: str) -> list[str]:
    """The end of a help: its paragraphs keep their lines and become sections."""
    parts: list[str] = []
    for paragraph in filter(None, (text.strip("\n") for text in epilog.split("\b\n"))):
        first, _, rest = paragraph.partition("\n")
        if heading := re.fullmatch(r"([A-Z][a-z ]*?)( \(.*\))?:", first):
            parts.append(f".SH {_HEADINGS[heading[1]]}")
            if heading[2]:
                words = heading[2].strip()[1:-1]
                parts.append(_line(f"{words[:1].upper()}{words[1:]}."))
        lines = (rest if heading else paragraph).split("\n")
        parts += [] if parts[-1:] and parts[-1].startswith(".SH") else [".PP"]
        parts += [".nf", *(_line(line[2:]) for line in lines), ".fi"]
    return parts


def _see_also(names: Sequence[str]) -> list[str]:
    listed = (f"\\fB{_text(name)}\\fR({SECTION})" for name in names)
    return [".SH SEE ALSO", ",\n".join(listed)]


def _text(text: str) -> str:
    r"""Text escaped so that roff prints it unchanged; hyphens can be copied.

    >>> print(_text(r"--a \ 'b'"))
    \-\-a \e \(aqb\(aq
    """
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return escaped.replace("`", "\\(ga").replace("~", "\\(ti").replace("^", "\\(ha")


def _line(text: str) -> str:
    """An escaped line; a leading dot is protected, because it would begin a request."""
    escaped = _text(text)
    return f"\\&{escaped}" if escaped.startswith(".") else escaped
