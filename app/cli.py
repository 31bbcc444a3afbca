"""The command line: `flashdeck serve`, and commands that talk to a running server."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from app.printing import fields, table
from fbxcore.client import Client
from fbxcore.errors import FbxError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
db = typer.Typer(no_args_is_help=True, help="The database.")
app.add_typer(db, name="db")
console = Console()
errors = Console(stderr=True)

Url = Annotated[str | None, typer.Option(help="Where the server answers.", envvar="FLASHDECK_URL")]
Token = Annotated[str | None, typer.Option(help="The server's token.", envvar="FLASHDECK_TOKEN")]
Names = Annotated[list[str] | None, typer.Argument(help="vault_name/vault_uid; all where none is given.")]
Data = Annotated[Path | None, typer.Option(help="The data directory.", envvar="FLASHDECK_DATA")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    data: Annotated[Path | None, typer.Option(help="The data directory.")] = None,
    vaults: Annotated[Path | None, typer.Option(help="Another folder of vaults, never written to.")] = None,
    database_url: Annotated[str | None, typer.Option(help="SQLite or PostgreSQL.")] = None,
    token: Annotated[str | None, typer.Option(help="Ask for this token (better: FLASHDECK_TOKEN).")] = None,
    generate_token: Annotated[
        bool,
        typer.Option("--generate-token", help="Without a token, make one, keep it in `data`, and print it."),
    ] = False,
    insecure: Annotated[bool, typer.Option("--insecure", help="Let anybody in on any address.")] = False,
    workers: Annotated[int, typer.Option(help="Only 1: the buffers live in the process.")] = 1,
    access_log: Annotated[bool, typer.Option("--access-log", help="Log every request.")] = False,
) -> None:
    """Start the server."""
    from app.server import run  # brings the whole service; the other commands do without

    given = {
        "host": host, "port": port, "data": data, "vaults": vaults, "database_url": database_url,
        "token": token, "insecure": insecure or None,
    }  # fmt: skip
    run(
        {name: value for name, value in given.items() if value is not None},
        workers=workers,
        access_log=access_log,
        generate_token=generate_token,
    )


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(min=1, help="How long to play.")] = 30.0,
    url: Url = None,
    token: Token = None,
) -> None:
    """Fill a running server with CartPole and Pong."""
    from app.demo import play  # needs the `demo` extra

    play(_address(url), token, seconds, console)


@app.command()
def ls(url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """List buffers and vaults."""
    with _client(url, token) as client:
        found = {"buffers": client.buffers(), "vaults": client.vaults()}
    if as_json:
        return _print_json(found)
    console.print(table("Buffers", found["buffers"], _BUFFER_COLUMNS))
    console.print(table("Vaults", found["vaults"], _VAULT_COLUMNS))
    return None


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A buffer's name, or vault_name/vault_uid.")],
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show a buffer, or a vault with its versions."""
    with _client(url, token) as client:
        if "/" in name:
            found = client.vault(name).describe() | {"versions": client.vault(name).versions()}
        else:
            found = client.buffer(name).describe()
    if as_json:
        return _print_json(found)
    versions = found.pop("versions", None)
    console.print(fields(name, found))
    if isinstance(versions, list):
        console.print(table("Versions", versions, _VERSION_COLUMNS))
    return None


@app.command()
def scan(url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """Let the server look for vaults in its folders now."""
    with _client(url, token) as client:
        found = client.scan()
    if as_json:
        return _print_json(found)
    console.print(fields("Scan", found))
    return None


@app.command()
def gc(
    names: Names = None,
    keep: Annotated[int | None, typer.Option(min=1, help="The newest so many versions stay.")] = None,
    older_than: Annotated[
        float | None, typer.Option(min=0, help="Versions younger than so many days stay.")
    ] = None,
    retain_steps: Annotated[
        int | None, typer.Option(min=1, help="The newest so many timesteps stay; older ones are given back.")
    ] = None,
    grace: Annotated[float, typer.Option(min=0, help="Seconds for which what was in use stays.")] = 900.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete nothing, say what would go.")] = False,
    data: Data = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Delete what no version needs: asks the running server, or works on the files where none runs.

    Versions go only with --keep or --older-than (with both, only where both allow it), never those that
    have a tag, and never the newest.
    """
    limits = {
        "keep": keep, "older_than_days": older_than, "retain_steps": retain_steps, "grace_s": grace,
        "dry_run": dry_run,
    }  # fmt: skip
    if url is None and _holder(data) is None:
        swept = _gc_files(data, names or [], limits)
    else:
        with _client(url or _holder(data)["address"], token) as client:
            swept = [_gc_served(client, name, limits) for name in names or _own_vaults(client)]
    if as_json:
        _print_json(swept)
    else:
        console.print(table("Would be given back" if dry_run else "Given back", swept, _SWEPT_COLUMNS))
    _exit_if(any("error" in found for found in swept))


def _gc_files(data: Path | None, names: list[str], limits: dict[str, Any]) -> list[dict[str, Any]]:
    from app.services import offline, sweeps
    from fbxcore.vault.retention import Retention

    retention = Retention(limits["keep"], limits["older_than_days"], limits["retain_steps"])
    asked = sweeps.Asked(retention, limits["grace_s"], limits["dry_run"])
    with _progress() as step:
        return offline.sweep_all(_data(data), names, asked, step)


def _gc_served(client: Client, name: str, limits: dict[str, Any]) -> dict[str, Any]:
    try:
        return client.vault(name).sweep(**limits)
    except FbxError as error:
        return {"vault": name, "error": str(error)}


def _own_vaults(client: Client) -> list[str]:
    return [f"{v['vault_name']}/{v['vault_uid']}" for v in client.vaults() if not v["read_only"]]


@app.command()
def verify(
    names: Names = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Put right what is certain: bytes behind a manifest's end.")
    ] = False,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Go on behind what another program wrote, once that has stopped.")
    ] = False,
    data: Data = None,
    vaults: Annotated[
        Path | None, typer.Option(help="Another folder of vaults.", envvar="FLASHDECK_VAULTS")
    ] = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Read and hash every chunk of every version anew; status 1 if something is wrong.

    It reads the files, whether or not a server runs on them. With --adopt, first each vault that another
    program wrote to is written to again: its timesteps stay, and those of ours that it wrote over follow.
    """
    from app.services import offline

    adopted = _adopt(data, names or [], url, token) if adopt else []
    refused = {found["vault"]: found["error"] for found in adopted if "error" in found}
    with _progress() as step:
        found = offline.verify_all(_data(data), vaults, names or [], repair=repair, step=step)
    for vault in found:
        vault |= {"error": refused[vault["vault"]]} if vault["vault"] in refused else {}
    if as_json:
        _print_json(found)
    else:
        rows = [vault | {"findings": [_finding(f) for f in vault["findings"]]} for vault in found]
        console.print(table("Verified", rows, _VERIFIED_COLUMNS))
    _exit_if(bool(refused) or not all(vault["is_whole"] for vault in found))


def _adopt(data: Path | None, names: list[str], url: str | None, token: str | None) -> list[dict[str, Any]]:
    """Let the server adopt, or do it to the files where none runs."""
    from app.services import offline

    if url is None and _holder(data) is None:
        return offline.adopt_all(_data(data), names)
    adopted = []
    with _client(url or _holder(data)["address"], token) as client:
        for name in names or _own_vaults(client):
            try:
                adopted.append(client.vault(name).adopt())
            except FbxError as error:
                adopted.append({"vault": name, "error": str(error)})
    return adopted


def _finding(found: Mapping[str, Any]) -> str:
    return f"{found['where']}: {found['problem']}{' (repaired)' if found['repaired'] else ''}"


@app.command()
def backup(
    target: Annotated[Path, typer.Argument(help="A new directory.")],
    data: Data = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Copy the data directory as of one moment, also while a server runs on it."""
    from app.services.backup import check_free, copy_out

    here, target = _data(data), target.absolute()
    check_free(target, "target")
    with _made_backup(here, token) as made, _progress() as step:
        record = copy_out(made, target, lambda *at: step("backup", *at))
    _print_json(record) if as_json else console.print(fields(f"Backup in {target}", record))


@contextmanager
def _made_backup(data: Path, token: str | None) -> Iterator[Path]:
    """Give the backup that the server makes, or one of the files where none runs; it goes at the end."""
    from app.services import offline

    if (holder := _holder(data)) is None:
        with offline.made_backup(data) as made:
            yield made
        return
    with _client(holder["address"], token) as client:
        id = client.create_backup()["id"]
        try:
            yield data / "backups" / id
        finally:
            client.delete_backup(id)


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(help="What `flashdeck backup` made.")],
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Make a new data directory of a backup."""
    from app.services.backup import restore as bring_back

    with _progress() as step:
        record = bring_back(source.absolute(), _data(data), lambda *at: step("restore", *at))
    _print_json(record) if as_json else console.print(fields(f"Restored to {_data(data)}", record))


@db.command("upgrade")
def db_upgrade(
    database_url: Annotated[str | None, typer.Option(help="SQLite or PostgreSQL.")] = None,
    data: Annotated[Path | None, typer.Option(help="The data directory.")] = None,
) -> None:
    """Bring the tables up to date; PostgreSQL needs it before the first start and after each update."""
    from app.db import find_revision, upgrade
    from app.settings import Settings

    given = {"database_url": database_url, "data": data}
    settings = Settings(**{name: value for name, value in given.items() if value is not None})
    if settings.database_url is None:
        settings.data.mkdir(parents=True, exist_ok=True)
    upgrade(settings.url)
    console.print(f"The database is at migration {find_revision(settings.url)}.", highlight=False)


def main() -> None:
    """Run a command; an error raised on purpose is one sentence and exit status 1."""
    try:
        app()
    except FbxError as error:
        errors.print(f"Error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        if error.hint:
            errors.print(error.hint, highlight=False, markup=False, soft_wrap=True)
        sys.exit(1)


def _exit_if(is_wrong: bool) -> None:
    if is_wrong:
        raise typer.Exit(1)


def _data(data: Path | None) -> Path:
    return (data or Path(os.environ.get("FLASHDECK_DATA", "flashdeck-data"))).absolute()


def _holder(data: Path | None) -> dict[str, Any] | None:
    """Return who serves a data directory."""
    from app.services.lock import read_holder

    return read_holder(_data(data))


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Draw one bar a vault on a terminal's standard error."""
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bars:
        tasks: dict[str, Any] = {}

        def step(key: str, done: int, total: int) -> None:
            if key not in tasks:
                tasks[key] = bars.add_task(key)
            bars.update(tasks[key], completed=done, total=total)

        yield step


def _client(url: str | None, token: str | None) -> Client:
    return Client(_address(url), token)


def _address(url: str | None) -> str:
    """Return the address given, or that of the server on the data directory, or the usual one."""
    if url is not None:
        return url
    lock = Path(os.environ.get("FLASHDECK_DATA", "flashdeck-data")) / "LOCK"
    try:
        return str(json.loads(lock.read_text())["address"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"http://127.0.0.1:{os.environ.get('FLASHDECK_PORT', '8000')}"


_BUFFER_COLUMNS = ("name", "kind", "size", "capacity", "added", "sampled", "persist_to", "error")
_VAULT_COLUMNS = ("vault_name", "vault_uid", "rows", "length", "pending", "versions", "tags", "error")
_SWEPT_COLUMNS = (
    "vault", "deleted_versions", "freed_steps", "files", "bytes", "waiting_bytes", "live_bytes", "disk_bytes",
    "error",
)  # fmt: skip
_VERIFIED_COLUMNS = ("vault", "is_whole", "length", "versions", "findings", "error")
_VERSION_COLUMNS = ("version", "length", "created_at", "tags", "message", "digest")


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
