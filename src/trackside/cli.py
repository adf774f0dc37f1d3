"""The command `trackside`: one word per thing that a person wants of a cluster."""

from __future__ import annotations

import getpass
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from trackside import content, init, local, runner
from trackside.errors import ExitCode, InputError, TracksideError
from trackside.request import Request, command_line, find_inventory

app = typer.Typer(
    name="trackside",
    help="From bare SSH hosts and one inventory to one DeepSpeed training cluster.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
local_app = typer.Typer(help="A cluster of containers on this machine that behave like nodes.", no_args_is_help=True)
app.add_typer(local_app, name="local")

Inventory = Annotated[str, typer.Option("--inventory", "-i", help="Inventory: a file or a folder.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, progress on stderr.")]
PrintCommand = Annotated[bool, typer.Option("--print-command", help="Print the ansible-playbook command and stop.")]
Check = Annotated[bool, typer.Option("--check", help="Dry run: say what would change.")]
Limit = Annotated[str, typer.Option("--limit", help="Touch only these nodes.")]
Verbose = Annotated[int, typer.Option("--verbose", "-v", count=True, help="Ansible's own output.")]
Extra = Annotated[list[str], typer.Option("--set", "-e", help="NAME=VALUE: a variable of a role (its README).")]
BecomePass = Annotated[bool, typer.Option("--ask-become-pass", "-K", help="Ask for sudo's password.")]
Vault = Annotated[str, typer.Option("--vault-password-file", help="As ansible-playbook's.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Directory = Annotated[Path, typer.Option("--directory", help="Folder of the local cluster's inventory.")]
Name = Annotated[str, typer.Option("--name", help="Name of the local cluster.")]
LOCAL_DIRECTORY = Path("inventory/local")


def say(text: str) -> None:
    """Show one line of progress."""
    print(text, file=sys.stderr, flush=True)


def variables(pairs: list[str]) -> dict[str, Any]:
    """Return NAME=VALUE words as variables; a value that is JSON is read as such."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"{pair!r} is not NAME=VALUE")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = value
    return found


def play(request: Request, *, as_json: bool, print_command: bool) -> None:
    """Run the request, or print its command; leave with its exit code."""
    if print_command:
        print(command_line(request))
        return
    password = getpass.getpass("sudo password: ") if request.ask_become_pass else ""
    outcome = runner.run(request, sys.stderr if as_json else sys.stdout, password)
    if as_json:
        print(json.dumps({"verb": request.verb, **asdict(outcome)}, indent=2))
    if outcome.exit_code:
        raise typer.Exit(outcome.exit_code)


@app.command()
def setup(
    inventory: Inventory = "",
    check: Check = False,
    limit: Limit = "",
    extra: Extra = [],
    ask_become_pass: BecomePass = False,
    vault_password_file: Vault = "",
    verbose: Verbose = 0,
    as_json: Json = False,
    print_command: PrintCommand = False,
) -> None:
    """Prepare the nodes: packages, user, names, keys, the stack. A second run changes nothing."""
    request = Request(
        "setup",
        find_inventory(inventory),
        variables(extra),
        limit=limit,
        check=check,
        ask_become_pass=ask_become_pass,
        vault_password_file=vault_password_file,
        verbosity=verbose,
    )
    play(request, as_json=as_json, print_command=print_command)


@app.command("check")
def check_cluster(
    inventory: Inventory = "",
    extra: Extra = [],
    ask_become_pass: BecomePass = False,
    verbose: Verbose = 0,
    as_json: Json = False,
    print_command: PrintCommand = False,
) -> None:
    """Prove that the nodes are one cluster."""
    request = Request(
        "check", find_inventory(inventory), variables(extra), ask_become_pass=ask_become_pass, verbosity=verbose
    )
    play(request, as_json=as_json, print_command=print_command)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def train(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="The training program; its own arguments after `--`.")],
    inventory: Inventory = "",
    launcher: Annotated[str, typer.Option(help="deepspeed or openmpi.")] = "",
    ds_config: Annotated[str, typer.Option(help="DeepSpeed's configuration.")] = "",
    code: Annotated[str, typer.Option(help="Folder to send to the nodes; else the script's own.")] = "",
    data: Annotated[str, typer.Option(help="Folder of data: sent, or present on every node.")] = "",
    run_id: Annotated[str, typer.Option("--name", help="Name of the run.")] = "",
    detach: Annotated[bool, typer.Option("--detach", help="Return as soon as it has started.")] = False,
    check: Check = False,
    extra: Extra = [],
    ask_become_pass: BecomePass = False,
    verbose: Verbose = 0,
    as_json: Json = False,
    print_command: PrintCommand = False,
) -> None:
    """Train a program on all nodes and show its output until it has ended."""
    path = Path(script).expanduser()
    if not path.is_file():
        raise InputError(f"{script}: there is no such script", "give the path of the training program")
    said: dict[str, Any] = {
        "run_script": str(path.resolve()),
        "run_arguments": context.args,
        "run_launcher": launcher,
        "run_ds_config": str(Path(ds_config).resolve()) if ds_config else "",
        "run_code": str(Path(code).resolve()) if code else "",
        "run_data": str(Path(data).resolve()) if data and Path(data).is_dir() else data,
        "run_id": run_id,
        "run_detach": detach,
    }
    given = {name: value for name, value in said.items() if value}
    request = Request(
        "train",
        find_inventory(inventory),
        {**given, **variables(extra)},
        check=check,
        ask_become_pass=ask_become_pass,
        verbosity=verbose,
    )
    play(request, as_json=as_json, print_command=print_command)


@app.command()
def stop(
    run_id: Annotated[str, typer.Argument(help="The run, as `train` named it.")],
    inventory: Inventory = "",
    extra: Extra = [],
    verbose: Verbose = 0,
    as_json: Json = False,
    print_command: PrintCommand = False,
) -> None:
    """End a run on every node: politely, then by force; no other run is touched."""
    request = Request("stop", find_inventory(inventory), {"run_id": run_id, **variables(extra)}, verbosity=verbose)
    play(request, as_json=as_json, print_command=print_command)


@app.command()
def teardown(
    inventory: Inventory = "",
    limit: Limit = "",
    yes: Yes = False,
    check: Check = False,
    verbose: Verbose = 0,
    as_json: Json = False,
    print_command: PrintCommand = False,
) -> None:
    """Remove what setup made from the nodes, runs and checkpoints included, and nothing else."""
    path = find_inventory(inventory)
    if not (yes or check or print_command or typer.confirm(f"Remove Trackside from the nodes of {path}?", err=True)):
        raise InputError("nothing was removed")
    request = Request("teardown", path, {"teardown_confirm": "yes"}, limit=limit, check=check, verbosity=verbose)
    play(request, as_json=as_json, print_command=print_command)


@app.command("init")
def init_inventory(
    hosts: Annotated[list[str] | None, typer.Argument(help="[name=][user@]address[:port]")] = None,
    directory: Annotated[Path, typer.Option(help="Folder to write.")] = Path("inventory/mine"),
    from_hostfile: Annotated[str, typer.Option(help="Take the hosts of a DeepSpeed hostfile.")] = "",
    user: Annotated[str, typer.Option("--user", "-u", help="Login user on the nodes.")] = "",
    key: Annotated[str, typer.Option(help="Private key to log in with.")] = "",
    ask_pass: Annotated[
        bool, typer.Option("--ask-pass", "-k", help="First contact by password: install the key.")
    ] = False,
    repin: Annotated[str, typer.Option(help="Pin this node's host key anew, as after a reinstall.")] = "",
    yes: Yes = False,
) -> None:
    """Write an inventory: hosts, their pinned host keys, and with --ask-pass your key on them."""
    init.command(
        init.Wanted(hosts or [], directory, from_hostfile, user, key, ask_pass=ask_pass, repin=repin, yes=yes), say
    )


@local_app.command("up")
def local_up(
    nodes: Annotated[int, typer.Option(help="Number of nodes.")] = 3,
    slots: Annotated[int, typer.Option(help="Worker processes per node.")] = 1,
    name: Name = "local",
    directory: Directory = LOCAL_DIRECTORY,
    no_dns: Annotated[bool, typer.Option("--no-dns", help="No names between the nodes.")] = False,
    prepared: Annotated[bool, typer.Option("--prepared", help="From an image that setup has prepared.")] = False,
) -> None:
    """Start the cluster, heal it, or add nodes to it."""
    key = content.prepared_key() if prepared else ""
    if prepared:
        local.prepare(directory.parent, _prepare_node, key, say)
    cluster = local.up(
        name,
        nodes=nodes,
        slots=slots,
        image="prepared" if prepared else "bare",
        directory=directory,
        say=say,
        dns=not no_dns,
        prepared_key=key,
    )
    say(f"{len(cluster.nodes)} nodes, inventory {cluster.inventory}; next: trackside setup -i {directory}")


def _prepare_node(inventory: Path) -> None:
    request = Request("setup", inventory, tags=content.NODE_GENERIC_TAGS)
    outcome = runner.run(request, sys.stderr)
    if outcome.exit_code:
        raise TracksideError("the node image could not be prepared", "read the failure above")


@local_app.command("down")
def local_down(name: Name = "local", directory: Directory = LOCAL_DIRECTORY) -> None:
    """Remove exactly what `up` made."""
    if not local.down(name, directory, say):
        say("there was nothing to remove")


@local_app.command("status")
def local_status(name: Name = "local", directory: Directory = LOCAL_DIRECTORY, as_json: Json = False) -> None:
    """Show the nodes."""
    found = local.status(name, directory)
    if as_json:
        print(json.dumps([asdict(node) for node in found]))
        return
    for node in found:
        print(
            f"{node.name}  {node.address}  {node.state}  {node.systemd}  {'sshd answers' if node.sshd else 'no sshd'}"
        )


def run() -> None:
    """Run the command line; the only place where the process ends."""
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    own, scripts = words[:end], words[end:]
    debug = "--debug" in own
    try:
        app([word for word in own if word != "--debug"] + scripts)
    except TracksideError as error:
        if debug:
            raise
        say(f"trackside: {error}")
        code = int(error.exit_code)
        if "--json" in own:
            problem = {"node": "", "step": "input", "what": error.message, "fix": error.fix, "exit_code": code}
            print(json.dumps({"exit_code": code, "hosts": {}, "problems": [problem], "notes": []}, indent=2))
        sys.exit(code)
    except KeyboardInterrupt:
        sys.exit(int(ExitCode.INTERRUPTED))
