"""Write completion scripts for bash, zsh and fish: commands, options, words of options, and file names.

A script holds all it needs, so that completing starts no Python.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from mltools.cli.reference import PROGRAM_OPTIONS, Command, Parameter


def completion(shell: str, commands: Sequence[Command]) -> str:
    """Give the completion script of `bash`, `zsh` or `fish` for the given commands."""
    return "\n".join(SHELLS[shell](commands)) + "\n"


def _bash(commands: Sequence[Command]) -> Iterator[str]:
    yield "# bash completion for mltools; made by `mltools completion bash`"
    yield "_mltools()"
    yield "{"
    yield "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words= kind= option="
    yield "    COMPREPLY=()"
    yield "    if ((COMP_CWORD == 1)); then"
    yield f'        COMPREPLY=($(compgen -W "{_names(commands)} {_flags(PROGRAM_OPTIONS)}" -- "$cur"))'
    yield "        return"
    yield "    fi"
    yield "    # --option=value comes as three words"
    yield '    [[ $cur == "=" ]] && cur= option=$prev'
    yield '    [[ $prev == "=" ]] && option=${COMP_WORDS[COMP_CWORD-2]}'
    yield "    [[ $prev == -* ]] && option=$prev"
    yield "    case ${COMP_WORDS[1]} in"
    for command in commands:
        yield f"    {command.name})"
        yield from (f"        {line}" for line in _bash_command(command))
        yield "        ;;"
    yield "    esac"
    yield "    if [[ -n $words ]]; then"
    yield '        COMPREPLY=($(compgen -W "$words" -- "$cur"))'
    yield "    elif [[ $kind != none ]]; then"
    yield "        local IFS=$'\\n'"
    yield "        compopt -o filenames 2>/dev/null"
    yield '        COMPREPLY=($(compgen -f -- "$cur"))'
    yield "    fi"
    yield "}"
    yield "complete -F _mltools mltools"


def _bash_command(command: Command) -> Iterator[str]:
    words = [word for argument in command.arguments for word in argument.choices]
    yield "case $option in"
    for option in command.options:
        if option.metavar:
            yield f"{'|'.join(option.spellings)}) {_bash_value(option)} ;;"
    yield f'*) [[ $cur == -* ]] && words="{_flags(command.options)}"'
    if words:
        yield f'   [[ $COMP_CWORD == 2 && $cur != -* ]] && words="{" ".join(words)}"'
    yield "   ;;"
    yield "esac"


def _bash_value(option: Parameter) -> str:
    if option.choices:
        return f'words="{" ".join(option.choices)}"'
    return "kind=file" if option.takes_file else "kind=none"


def _zsh(commands: Sequence[Command]) -> Iterator[str]:
    yield "#compdef mltools"
    yield "# zsh completion for mltools; made by `mltools completion zsh`"
    yield "_mltools() {"
    yield "  local -a commands"
    yield "  if ((CURRENT == 2)); then"
    yield "    commands=("
    yield from (f"      {_zsh_quote(f'{c.name}:{_zsh_colon(c.summary)}')}" for c in commands)
    yield "    )"
    yield "    _describe command commands"
    yield f"    _arguments {' '.join(spec for option in PROGRAM_OPTIONS for spec in _zsh_option(option))}"
    yield "    return"
    yield "  fi"
    yield "  shift words; ((CURRENT--))"
    yield "  case $words[1] in"
    for command in commands:
        yield f"  {command.name})"
        yield "    _arguments -s \\"
        specs = [spec for option in command.options for spec in _zsh_option(option)]
        specs += [_zsh_argument(argument) for argument in command.arguments]
        yield from (f"      {spec} \\" for spec in specs[:-1])
        yield f"      {specs[-1]}"
        yield "    ;;"
    yield "  esac"
    yield "}"
    yield '[[ $funcstack[1] == _mltools ]] && _mltools "$@" || compdef _mltools mltools'


def _zsh_option(option: Parameter) -> Iterator[str]:
    others = f"({' '.join(option.spellings)})" if not option.repeats else "*"
    for flag in option.spellings:
        value = f":{_zsh_colon(option.metavar)}:{_zsh_action(option)}" if option.metavar else ""
        equals = "=" if option.metavar and flag.startswith("--") else ""
        yield _zsh_quote(f"{others}{flag}{equals}[{_zsh_bracket(option.help)}]{value}")


def _zsh_argument(argument: Parameter) -> str:
    many = "*" if argument.repeats else ""
    return _zsh_quote(f"{many}:{_zsh_colon(argument.bare)}:{_zsh_action(argument)}")


def _zsh_action(parameter: Parameter) -> str:
    if parameter.choices:
        return f"({' '.join(parameter.choices)})"
    return "_files" if parameter.takes_file else " "


def _zsh_colon(text: str) -> str:
    return text.replace(":", "\\:")


def _zsh_bracket(text: str) -> str:
    return text.replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")


def _zsh_quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fish(commands: Sequence[Command]) -> Iterator[str]:
    yield "# fish completion for mltools; made by `mltools completion fish`"
    yield "complete -c mltools -f"
    for command in commands:
        yield f"complete -c mltools -n __fish_use_subcommand -a {command.name} -d {_fish_quote(command.summary)}"
    for option in PROGRAM_OPTIONS:
        flags = _fish_flags(option.spellings)
        yield f"complete -c mltools -n __fish_use_subcommand {flags} -d {_fish_quote(option.help)}"
    for command in commands:
        seen = f"complete -c mltools -n '__fish_seen_subcommand_from {command.name}'"
        for option in command.options:
            yield f"{seen} {_fish_flags(option.spellings)}{_fish_value(option)} -d {_fish_quote(option.help)}"
        for argument in command.arguments:
            if argument.takes_file or argument.choices:
                yield f"{seen}{_fish_value(argument).replace(' -x', '')}"


def _fish_flags(flags: Iterable[str]) -> str:
    return " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in flags)


def _fish_value(parameter: Parameter) -> str:
    if not parameter.metavar:
        return ""
    if parameter.choices:
        return f" -x -a {_fish_quote(' '.join(parameter.choices))}"
    if parameter.takes_file:
        return " -r -F" if parameter.flags else " -F"
    return " -x"


def _fish_quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _flags(options: Sequence[Parameter]) -> str:
    return " ".join(flag for option in options for flag in option.spellings)


def _names(commands: Sequence[Command]) -> str:
    return " ".join(command.name for command in commands)


SHELLS: dict[str, Callable[[Sequence[Command]], Iterator[str]]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
