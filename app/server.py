"""One uvicorn process around the app: what `flashdeck serve` runs."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uvicorn
from pydantic import SecretStr, ValidationError

from app.errors import rule_of
from app.process import prepare
from app.protocol import Protocol
from app.settings import Settings
from fbxcore.errors import ConflictError, FbxError, InvalidArgumentError

GRACE_S = 3
KEEP_ALIVE_S = 75


class ToldStart:
    """The app, with an error raised on purpose at its start kept for the command line, not logged in full."""

    def __init__(self, app: Any):
        self.app = app
        self.error: FbxError | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            return await self.app(scope, receive, send)

        async def send_quietly(message: Any) -> None:
            if message["type"] == "lifespan.startup.failed" and isinstance(sys.exc_info()[1], FbxError):
                message = {"type": message["type"], "message": ""}
            await send(message)

        try:
            return await self.app(scope, receive, send_quietly)
        except FbxError as error:
            self.error = error


class Server(uvicorn.Server):
    """A server that says where it is once it is there."""

    def __init__(self, config: uvicorn.Config, settings: Settings, tells_token: bool = False):
        super().__init__(config)
        self.settings = settings
        self.tells_token = tells_token

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, then say so."""
        await super().startup(sockets)
        if self.started:
            sys.stdout.write(_greeting(self.settings, self.tells_token))
            sys.stdout.flush()


def run(
    given: Mapping[str, Any], *, workers: int = 1, access_log: bool = False, generate_token: bool = False
) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises:
        InvalidArgumentError: if a setting is wrong, a folder cannot be used, or the address is open to
            others without a token.
        ConflictError: if the port or the data directory is in use.
    """
    settings = settings_of(given)
    check_workers(workers)
    make_data(settings.data)
    check_vaults(settings.vaults)
    if generate_token and settings.token is None:
        settings = settings.model_copy(update={"token": SecretStr(kept_token(settings.data))})
    settings.check()
    listener = listen(settings)
    settings = settings.model_copy(update={"port": listener.getsockname()[1]})
    prepare(settings)
    from app.main import create_app  # imports JAX, which `prepare` comes before

    service = ToldStart(create_app(settings))
    server = Server(config_of(service, settings, access_log), settings, generate_token)
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:  # uvicorn raises it again after a clean stop
        sys.exit(130)
    except SystemExit:
        if service.error is not None:
            raise service.error from None
        raise


def settings_of(given: Mapping[str, Any]) -> Settings:
    """Return the settings of the environment with what was given on the command line."""
    try:
        return Settings(**given)
    except ValidationError as error:
        fault = error.errors()[0]
        name = ".".join(str(part) for part in fault["loc"])
        raise InvalidArgumentError(
            f"`{name}` must {rule_of(fault['msg'])}, got {fault['input']!r:.80}.", loc=(name,)
        ) from error


def make_data(data: Path) -> None:
    """Make the data directory where there is none, and refuse one that takes no files."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        reason = None if os.access(data, os.W_OK | os.X_OK) else "not writable"
    except OSError as error:
        reason = error.strerror
    if reason is not None:
        raise InvalidArgumentError(
            f"`data` must be a folder that takes files, got {str(data)!r} ({reason}). "
            "Choose another with --data.",
            loc=("data",),
        )


def check_vaults(vaults: Path | None) -> None:
    """Refuse a folder of vaults that is not there: nothing would be shown, and nobody would know why."""
    if vaults is not None and not vaults.is_dir():
        raise InvalidArgumentError(
            f"`vaults` must be a folder that exists, got {str(vaults)!r}. Choose another with --vaults, or "
            "make it.",
            loc=("vaults",),
        )


def kept_token(data: Path) -> str:
    """Return the token that lies in the data directory; make one where there is none."""
    path = data / "token"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text().strip()
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_urlsafe(24) + "\n")
    return path.read_text().strip()


def check_workers(workers: int) -> None:
    """Refuse what cannot work: each worker would have buffers of its own."""
    if workers != 1:
        raise InvalidArgumentError(
            f"`workers` must be 1, got {workers}. A buffer lives in the process that serves it, and every "
            "worker would have another one.",
            loc=("workers",),
        )


def listen(settings: Settings) -> socket.socket:
    """Return a bound socket, or say in one sentence why there is none."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConflictError(
                f"`port` must be free, got {settings.port}, which another program listens on. "
                "Stop it, or choose another with --port.",
                code="port_in_use",
                loc=("port",),
            ) from error
        raise InvalidArgumentError(
            f"`host` and `port` must be an address of this machine, got {settings.host}:{settings.port} "
            f"({error.strerror or error}).",
            loc=("host",),
        ) from error
    return listener


def config_of(app: Any, settings: Settings, access_log: bool = False) -> uvicorn.Config:
    """Return uvicorn's configuration for an app."""
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=Protocol,
        ws="none",
        lifespan="on",
        log_level=settings.log_level.lower(),
        access_log=access_log,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
    )


def _greeting(settings: Settings, tells_token: bool) -> str:
    lines = [f"Flashdeck is at {settings.address}", f"Data lies in {settings.data.absolute()}"]
    if settings.vaults is not None:
        lines.append(f"Vaults are shown from {settings.vaults.absolute()}")
    if settings.token is not None:
        word = settings.token.get_secret_value() if tells_token else "as set"
        lines.append(f"The token is {word}; browsers log in at /login")
    return "\n".join(lines) + "\n"
