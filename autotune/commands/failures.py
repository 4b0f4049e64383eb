"""From exceptions to exit statuses and one line a problem on stderr."""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from typing import cast

from simcore.errors import (
    InputError,
    Issue,
    NoFeasibleStrategyError,
    ResourceError,
    SimcoreError,
    nearest,
)

DONE, BUG, BAD_INPUT, NOTHING_FITS = 0, 1, 2, 3
FAILED = 1
"""Something around the program fails; no bug, but no answer either."""
COMPLETION = "_AUTOTUNE_COMPLETE"
"""Variable by which Typer's completion scripts ask the program."""
INTERRUPTED = 130
"""What Typer makes of Ctrl-C."""
MAX_LINES = 100
MAX_LINE = 1000


def printable(text: str) -> str:
    """Escape what would move the cursor, colour the terminal or break the line."""
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode()
                   for c in text)
    return safe if len(safe) <= MAX_LINE else safe[:MAX_LINE - 3] + "..."


def say(line: str) -> None:
    """Write one line to stderr."""
    try:
        sys.stderr.write(printable(line) + "\n")
        sys.stderr.flush()
    except OSError:
        # Nobody listens; the exit status still tells.
        return


def warn(message: str) -> None:
    """Write a warning to stderr."""
    say(f"warning: {message}")


def guarded(arguments: list[str]) -> int:
    """Run the command line and turn whatever is raised into an exit status."""
    debug = "--debug" in arguments
    if sys.stdout is None:
        # Started with a closed stdout: there is nobody to show the answer to.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal cannot show is escaped, never a crash.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    try:
        status = _dispatch(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        return _quiet_pipe()
    except InputError as error:
        return _bad_input(error.issues)
    except NoFeasibleStrategyError as error:
        say(f"error: {error}")
        return NOTHING_FITS
    except ResourceError as error:
        say(f"error: {error}")
        return FAILED
    except SimcoreError as error:
        say(f"error: {error}")
        return BAD_INPUT
    except KeyboardInterrupt:
        say("error: interrupted")
        return BUG
    except OSError as error:
        return _system(error, debug=debug)
    except Exception as error:
        return _bug(error, debug=debug)
    return status


def _system(error: OSError, *, debug: bool) -> int:
    """Tell what the system refused: a name that is too long, a full disk; else it is a bug."""
    if error.errno == errno.ENAMETOOLONG:
        name = str(error.filename or "")
        return _bad_input((Issue(f"'{name[:60]}...'", f"has {len(name)} characters, more than a "
                                 "file name may have", "use a shorter name"),))
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO):
        say(f"error: cannot write: {error.strerror}")
        # What is still waiting to be written would fail once more, at the end.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        return FAILED
    return _bug(error, debug=debug)


def _dispatch(arguments: list[str]) -> int:
    import typer

    from autotune.cli import build, named

    # Typer carries its own copy of click since 0.20: the bases are found, not imported.
    usage_error = cast("type[Exception]", typer.BadParameter.__mro__[1])
    click_error = cast("type[Exception]", usage_error.__mro__[1])
    # A shell that completes a line hands it over in the environment.
    only = None if COMPLETION in os.environ else named(arguments)
    command = typer.main.get_command(build(only))
    try:
        status = command.main(arguments, prog_name="autotune", standalone_mode=False)
    except usage_error as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            sys.stdout.write(f"{error}".rstrip() + "\n")
            return DONE
        raise InputError(_usage_issue(error)) from error
    except click_error as error:
        raise InputError(Issue("command line", str(error))) from error
    except typer.Abort:
        say("error: interrupted")
        return BUG
    except SystemExit as stop:
        # The framework answers a closed pipe with an exit of its own.
        status = stop.code
        if status == BUG:
            return _quiet_pipe()
    if status == INTERRUPTED:
        say("error: interrupted")
        return BUG
    return int(status or 0)


def _usage_issue(error: Exception) -> Issue:
    """Say in our own form what the command line's parser found."""
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "autotune")
    params = getattr(getattr(context, "command", None), "params", ())
    flags = sorted({o for p in params for o in p.opts if o.startswith("--")})
    option = getattr(error, "option_name", None)
    text = str(getattr(error, "message", "") or error)
    kind = type(error).__name__
    if kind == "NoSuchOption" and option:
        return Issue(str(option)[:80], f"is not an option of '{path}'",
                     nearest(str(option), flags + ["--help"]))
    if kind == "BadOptionUsage" and option:
        return Issue(str(option), "needs a value" if "requires" in text else "takes no value",
                     f"see '{path} --help'")
    found = re.match(r"No such command '?(.*?)'?\.(?:\s|\Z)", text, re.DOTALL)
    if found:
        names = list(getattr(context.command, "commands", ())) if context else []
        return Issue(f"'{found[1][:80]}'", "is not a command", nearest(found[1], names))
    extra = re.match(r"Got unexpected extra argument(?:\(s\)|s)?\s*\((.*)\)\Z", text, re.DOTALL)
    if extra:
        return Issue(f"'{extra[1][:80]}'", f"is not expected by '{path}'",
                     f"options start with --; see '{path} --help'")
    message = getattr(error, "format_message", lambda: text)()
    return Issue("command line", message.rstrip("."), f"see '{path} --help'")


def _bad_input(issues: tuple[Issue, ...]) -> int:
    for issue in issues[:MAX_LINES]:
        say(f"error: {issue}")
    if len(issues) > MAX_LINES:
        say(f"error: and {len(issues) - MAX_LINES} more")
    return BAD_INPUT


def _bug(error: Exception, *, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    hint = "" if debug else " (run with --debug for the traceback)"
    say(f"error: this is a bug in autotune: {type(error).__name__}: {error}{hint}")
    return BUG


def _quiet_pipe() -> int:
    """Let a reader such as ``head`` close the pipe without a word."""
    try:
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())
    except (OSError, ValueError):
        pass
    return DONE
