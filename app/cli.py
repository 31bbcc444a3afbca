"""The command line: `flashdeck serve`, and commands that talk to a running server."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fbxcore.client import Client
from fbxcore.errors import FbxError
from fbxcore.spec import parse_spec

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
db = typer.Typer(no_args_is_help=True, help="The database.")
app.add_typer(db, name="db")
console = Console()
errors = Console(stderr=True)

Url = Annotated[str | None, typer.Option(help="Where the server answers.", envvar="FLASHDECK_URL")]
Token = Annotated[str | None, typer.Option(help="The server's token.", envvar="FLASHDECK_TOKEN")]
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
    console.print(_table("Buffers", found["buffers"], _BUFFER_COLUMNS))
    console.print(_table("Vaults", found["vaults"], _VAULT_COLUMNS))
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
    console.print(_fields(name, found))
    if isinstance(versions, list):
        console.print(_table("Versions", versions, _VERSION_COLUMNS))
    return None


@app.command()
def scan(url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """Let the server look for vaults in its folders now."""
    with _client(url, token) as client:
        found = client.scan()
    if as_json:
        return _print_json(found)
    console.print(_fields("Scan", found))
    return None


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
_VERSION_COLUMNS = ("version", "length", "created_at", "tags", "message", "digest")


def _table(title: str, items: list[dict[str, Any]], columns: tuple[str, ...]) -> Table:
    table = Table(title=f"{title} ({len(items)})", title_justify="left")
    shown = [column for column in columns if not items or any(item.get(column) for item in items)]
    for column in shown:
        is_number = any(isinstance(item.get(column), int | float) for item in items)
        table.add_column(column.replace("_", " "), justify="right" if is_number else "left", overflow="fold")
    for item in items:
        table.add_row(*[_text(item.get(column)) for column in shown])
    return table


def _fields(title: str, members: Mapping[str, Any]) -> Table:
    table = Table("field", "value", title=title, title_justify="left")
    for name, value in members.items():
        if name != "config":  # the other fields, as they were asked for
            table.add_row(name.replace("_", " "), _spec_text(value) if name == "spec" else _text(value))
    return table


def _spec_text(spec: Mapping[str, Any]) -> str:
    """Return a spec with a line for each leaf."""
    leaves = parse_spec(spec)
    width = max(map(len, leaves))
    lines = [f"{name:{width}}  {leaf.dtype} {list(leaf.shape) or ''}" for name, leaf in leaves.items()]
    return _text("\n".join(line.rstrip() for line in lines))


def _text(value: Any) -> str:
    """Return a cell; Rich would read brackets as markup."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        value = ", ".join(value) or "–"
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text.replace("[", r"\[")


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
