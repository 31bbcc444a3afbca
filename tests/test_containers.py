"""The container files are well formed and run the commands of the Makefile; what they run is run here."""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
INSTRUCTIONS = {
    "FROM",
    "WORKDIR",
    "COPY",
    "RUN",
    "USER",
    "ENV",
    "VOLUME",
    "EXPOSE",
    "STOPSIGNAL",
    "HEALTHCHECK",
    "CMD",
}

TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
COMPOSE_SCHEMA = {
    "type": "object",
    "required": ["services"],
    "additionalProperties": False,
    "properties": {
        "services": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "oneOf": [{"required": ["image"]}, {"required": ["build"]}],
                "additionalProperties": False,
                "properties": {
                    "image": {"type": "string", "pattern": "^[a-z]+:[0-9.]+$"},
                    "build": {"type": "string"},
                    "ports": {
                        "type": "array",
                        "items": {"type": "string", "pattern": r"^127\.0\.0\.1:\d+:\d+$"},
                    },
                    "environment": TEXTS,
                    "volumes": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+:/"}},
                    "depends_on": {
                        "type": "object",
                        "additionalProperties": {
                            "type": "object",
                            "required": ["condition"],
                            "properties": {"condition": {"enum": ["service_healthy"]}},
                        },
                    },
                    "healthcheck": {
                        "type": "object",
                        "required": ["test"],
                        "properties": {
                            "test": {"type": "array", "items": {"type": "string"}},
                            "interval": {"type": "string", "pattern": r"^\d+s$"},
                            "timeout": {"type": "string", "pattern": r"^\d+s$"},
                            "retries": {"type": "integer"},
                        },
                        "additionalProperties": False,
                    },
                    "restart": {"enum": ["no", "always", "on-failure", "unless-stopped"]},
                    "stop_grace_period": {"type": "string", "pattern": r"^\d+s$"},
                },
            },
        },
        "volumes": {"type": "object"},
    },
}


def _dockerfile():
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [tuple(line.split(None, 1)) for line in lines]


def test_the_dockerfile_is_well_formed():
    """Known instructions, a base first, one command last, exec form in JSON."""
    steps = _dockerfile()

    assert {word for word, _ in steps} <= INSTRUCTIONS
    assert steps[0] == ("FROM", "python:3.11-slim")
    assert steps[-1][0] == "CMD"
    assert all(isinstance(json.loads(rest), list) for word, rest in steps if word == "CMD")


def test_what_the_image_copies_exists():
    """Every source of a COPY is in the repository, and all that the build needs is copied."""
    sources = [part for word, rest in _dockerfile() if word == "COPY" for part in rest.split()[:-1]]

    assert all((ROOT / source).exists() for source in sources)
    assert {
        "pyproject.toml",
        "requirements.lock",
        "app",
        "fbxcore",
        "templates",
        "static",
        "migrations",
    } <= set(sources)


def test_the_image_installs_what_make_serve_installs():
    """The same extras under the same pins."""
    makefile = (ROOT / "Makefile").read_text()
    install = next(rest for word, rest in _dockerfile() if word == "RUN" and "pip" in rest)
    extras = re.search(r"--editable '\.(\[[a-z,]+\])'", makefile.split(".server:")[1]).group(1)

    assert f"'.{extras}'" in install
    assert "--constraint requirements.lock" in install
    assert "--constraint requirements.lock" in makefile


def test_the_image_does_not_run_as_root():
    """The service has a user of its own, set before the command."""
    words = [word for word, _ in _dockerfile()]

    assert words.index("USER") < words.index("CMD")
    assert next(rest for word, rest in _dockerfile() if word == "USER") != "root"


def test_the_compose_file_is_well_formed():
    """It has the structure that Compose reads."""
    jsonschema.validate(COMPOSE, COMPOSE_SCHEMA)


def test_the_compose_file_agrees_with_itself():
    """Services and volumes that are named exist, and the app waits until its database is healthy."""
    services = COMPOSE["services"]
    volumes = {entry.split(":")[0] for service in services.values() for entry in service.get("volumes", [])}
    app, postgres = services["app"], services["postgres"]

    assert volumes == set(COMPOSE["volumes"])
    assert set(app["depends_on"]) <= set(services)
    assert "healthcheck" in postgres
    assert "ports" not in postgres


def test_the_database_address_fits_the_database():
    """User, password, database and host of the address are those of the service beside it."""
    url = COMPOSE["services"]["app"]["environment"]["FLASHDECK_DATABASE_URL"]
    environment = COMPOSE["services"]["postgres"]["environment"]
    expected = "postgresql+psycopg://{POSTGRES_USER}:{POSTGRES_PASSWORD}@postgres:5432/{POSTGRES_DB}"

    assert url == expected.format(**environment)


def test_every_setting_in_the_container_files_exists():
    """No variable is misspelt."""
    from app.settings import Settings

    text = (ROOT / "Dockerfile").read_text() + (ROOT / "docker-compose.yml").read_text()
    used = {name.lower() for name in re.findall(r"FLASHDECK_([A-Z_]+)", text)}

    assert used <= set(Settings.model_fields)


@pytest.fixture
def container(tmp_path):
    """What the image runs, started in a folder of its own on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = json.loads(next(rest for word, rest in _dockerfile() if word == "CMD"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLASHDECK_")}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "FLASHDECK_DATA": str(tmp_path / "data"),
        "FLASHDECK_PORT": str(port),
        "FLASHDECK_TOKEN": "",
        "PYTHONUNBUFFERED": "1",
    }
    log = (tmp_path / "log").open("w")
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait_for(port, process, tmp_path / "log")
        yield port, tmp_path, process
    finally:
        process.terminate()
        process.wait(20)
        log.close()


def _wait_for(port, process, log):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(log.read_text())


def test_what_the_image_runs_serves_and_asks_for_the_token_it_made(container):
    """Without the printed token there is no answer, with it there is; SIGTERM ends it in time."""
    port, folder, process = container
    token = (folder / "data" / "token").read_text().strip()
    url = f"http://127.0.0.1:{port}/api/v1/buffers"

    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        urllib.request.urlopen(url, timeout=5)
    refused.value.close()
    with urllib.request.urlopen(
        urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"}), timeout=5
    ) as answer:
        assert answer.status == 200
    assert token in (folder / "log").read_text()
    assert oct((folder / "data" / "token").stat().st_mode)[-3:] == "600"

    health = next(rest for word, rest in _dockerfile() if word == "HEALTHCHECK")
    code = json.loads(health.split("CMD", 1)[1])[-1].replace(":8000", f":{port}")
    assert subprocess.run([sys.executable, "-c", code], timeout=10, check=False).returncode == 0

    started = time.monotonic()
    process.terminate()
    process.wait(20)
    assert time.monotonic() - started < 10


def test_the_command_execs_the_server():
    """The server replaces the shell, so that it gets the signals."""
    command = json.loads(next(rest for word, rest in _dockerfile() if word == "CMD"))
    words = shlex.split(command[-1])

    assert words[words.index("&&") + 1] == "exec"
