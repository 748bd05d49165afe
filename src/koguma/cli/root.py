"""The root of the command tree: names and short helps of all commands, which are imported when called."""

import errno
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from koguma import __version__
from koguma.cli import examples, failures
from koguma.cli.failures import CommandFailure, ExitCode
from koguma.cli.options import VERBOSE

# Each command `name` is the attribute `command` of the module `koguma.cli.<name>`, or of the one named below.
COMMANDS: Final[Mapping[str, str]] = {
    "cp": "Run a control plane.",
    "dp": "Run a proxy beside a service.",
    "apply": "Write objects from files, all of them or none.",
    "edit": "Change an object in an editor.",
    "get": "Show objects: a table, YAML, JSON; or watch them.",
    "describe": "Explain objects: identity, labels, times, spec.",
    "diff": "Compare files with what is stored, or two revisions.",
    "plan": "Say what a change would do to every proxy, before it is applied.",
    "lint": "Find what is wrong or odd in files, before they are applied.",
    "inspect": "Show what acts on a proxy, whom a policy selects, who a service is.",
    "top": "Show requests, errors and latencies of services or proxies.",
    "explain": "Say who set a value, where, and who lost.",
    "can": "Say whether one may call another, and which rule decides it.",
    "test": "Check what becomes of requests, by cases beside the objects in files.",
    "delete": "Remove objects.",
    "history": "Show who changed what, when and why.",
    "undo": "Take a change back.",
    "wait": "Wait until a change has reached every proxy that it touches.",
    "kinds": "List the kinds of objects and the words for them.",
    "kri": "Take resource identifiers apart, or build them.",
    "export": "Back up every stored object.",
    "import": "Restore a backup.",
    "migrate": "Bring what is stored into the form of today.",
    "zone": "Let a zone join a Global control plane, or leave it.",
    "token": "Issue, inspect and revoke tokens.",
    "config": "Keep the control planes that you talk to.",
    "kubeconfig": "Write a kubeconfig, for kubectl and its relatives.",
    "check": "Check the control plane, a line each with what to do.",
    "version": "Show the versions of client and server.",
    "completion": "Print a completion script for a shell.",
}

# Where exit code 2 says something of the mesh: no, some do, not yet.
_TWO_IS_AN_ANSWER: Final = ("apply", "can", "delete", "plan", "test", "wait")

_DISK_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
MODULES: Final[Mapping[str, str]] = {"import": "import_backup"}  # a keyword cannot name a module


class Root(click.Group):
    """A group that imports a command's module when the command is called, and reports its failures."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name."""
        if cmd_name not in COMMANDS:
            return None
        module = MODULES.get(cmd_name, cmd_name)
        command: click.Command = importlib.import_module(f"koguma.cli.{module}").command
        examples.attach(command, cmd_name)
        if ctx.resilient_parsing:  # a shell completes the command line
            from koguma.cli import completers  # noqa: PLC0415 - only for completion

            completers.attach(command, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - the same
        """The list of commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands with this prefix, without importing them, and options."""
        names = [name for name in COMMANDS if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=COMMANDS[name]) for name in names]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest command in the error."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            ctx.fail(f'there is no command "{name}"{_near(name)}')
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; returns the exit code."""
        try:
            code = super().invoke(ctx)
            if sys.stdout is not None:  # whoever started this may have closed it
                sys.stdout.flush()
        except KeyboardInterrupt:
            return ExitCode.INTERRUPTED
        except BrokenPipeError:
            _discard_output()  # the reader closed the pipe
            return ExitCode.BROKEN_PIPE
        except CommandFailure as failure:
            return _report(ctx, failure)
        except click.UsageError as error:
            error.ctx = error.ctx or self._context_of(ctx)
            raise
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            failure_of_library = failures.from_koguma_error(error)
            if failure_of_library is None:
                raise
            return _report(ctx, failure_of_library)
        return code

    def _context_of(self, ctx: click.Context) -> click.Context | None:
        """The context of the command that was run, for an error that names none."""
        name = ctx.invoked_subcommand
        command = self.get_command(ctx, name) if name else None
        return click.Context(command, parent=ctx, info_name=name) if command is not None else None


def _discard_output() -> None:
    """Let what is still to be written go nowhere, so that the flush at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(ctx: click.Context, failure: CommandFailure) -> ExitCode:
    failures.report(failure, verbose=bool(ctx.meta.get(VERBOSE)))
    return _usage_code(ctx.invoked_subcommand) if failure.code is ExitCode.USAGE else failure.code


def _near(name: str) -> str:
    from koguma.model.nearest import nearest  # noqa: PLC0415 - only for an error

    near = nearest(name, COMMANDS)
    return f'; did you mean "{near}"?' if near else "; `koguma --help` lists them"


@click.group(
    cls=Root,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=f"{examples.text(examples.ROOT)}\n\n"
    "Exit codes: 0 fine, 1 refused or not found, 2 wrong usage, 3 server unreachable, 4 not allowed."
    " The server is found by --address, KOGUMA_ADDRESS, the current context, or in KOGUMA_DATA_DIR.",
)
@click.version_option(__version__, prog_name="koguma", message="%(prog)s %(version)s")
def root() -> None:
    """Koguma, a service-mesh control plane."""


def _unknown_option(error: click.NoSuchOption) -> CommandFailure:
    """An option that does not exist, with our hint; click suggests options that only share letters."""
    from koguma.cli import usage_hints  # noqa: PLC0415 - only for an error

    ctx = error.ctx
    known = [
        name for param in (ctx.command.params if ctx else ()) for name in (*param.opts, *param.secondary_opts)
    ]
    path = ctx.command_path if ctx else "koguma"
    advice = usage_hints.option_advice(path, error.option_name, known)
    message = f"No such option {error.option_name}" + (f"; {advice}" if advice else "")
    return CommandFailure(message, (f" - `{path} --help` says more",))


def _usage_code(command: str | None) -> ExitCode:
    """Wrong usage is 2, but where that is an answer: a script must not take a wrong flag for one."""
    return ExitCode.REFUSED if command in _TWO_IS_AN_ANSWER else ExitCode.USAGE


def _command_of(error: click.UsageError) -> str | None:
    """The name of the command that an error is about."""
    ctx = error.ctx
    while ctx is not None and ctx.parent is not None and ctx.parent.parent is not None:
        ctx = ctx.parent
    return ctx.info_name if ctx is not None else None


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    try:
        code = root.main(args=argv, prog_name="koguma", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return ExitCode.USAGE
    except click.NoSuchOption as error:
        failures.report(_unknown_option(error))
        return _usage_code(_command_of(error))
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "koguma"
        failures.report(CommandFailure(error.format_message(), (f" - `{path} --help` says more",)))
        return _usage_code(_command_of(error))
    except click.ClickException as error:
        failures.report(CommandFailure(error.format_message()))
        return error.exit_code
    except click.Abort:
        return ExitCode.INTERRUPTED
    except OSError as error:
        if error.errno not in _DISK_ERRORS or error.filename:
            raise
        _discard_output()
        failures.report(CommandFailure(f"the output cannot be written: {error.strerror}"))
        return ExitCode.REFUSED
    return int(code) if isinstance(code, int) else ExitCode.FINE
