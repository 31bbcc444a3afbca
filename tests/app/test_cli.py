"""Each command does what its help says, and an error is one sentence and status 1."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from app import process
from fbxcore.client import Client
from fbxcore.errors import ConflictError, InvalidArgumentError
from fbxcore.vault.store import VaultWriter
from tests.served import BIN, environment, serve

SPEC = {"obs": {"shape": [2], "dtype": "float32"}}


def run(*arguments, **settings):
    """Run `flashdeck`, and return its status, what it printed and what it complained about."""
    done = subprocess.run(
        [str(BIN / "flashdeck"), *arguments], capture_output=True, text=True, timeout=60,
        env=environment(COLUMNS="200", **settings), cwd=settings.get("HOME", "/"),
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server with a buffer that persists to a vault with a version."""
    with serve(tmp_path_factory.mktemp("cli")) as server:
        with Client(server.url) as client:
            buffer = client.create_buffer(
                "walk",
                "flat",
                SPEC,
                max_length=100,
                min_length=2,
                sample_batch_size=4,
                persist_to="walk/run1",
            )
            buffer.add({"obs": np.zeros((1, 20, 2), np.float32)})
            client.vault("walk/run1").create_version("Twenty [steps]", tags=["first"])
        yield server


def test_serve_says_where_it_is_and_where_data_lie(served):
    """The address answers, and the directory holds the data."""
    assert f"Data lies in {served.folder / 'data'}" in served.log
    assert (served.folder / "data" / "vaults" / "walk" / "run1").is_dir()
    assert "Traceback" not in served.log


def test_ls_lists_buffers_and_vaults(served):
    """A table for people, JSON for scripts."""
    status, table, _ = run("ls", "--url", served.url)
    _, text, _ = run("ls", "--url", served.url, "--json")
    found = json.loads(text)

    assert status == 0
    assert "Buffers (1)" in table and "Vaults (1)" in table and "walk" in table
    assert found["buffers"][0]["size"] == 20
    assert found["vaults"][0]["vault_uid"] == "run1"


def test_show_tells_about_a_buffer_and_a_vault(served):
    """A name with a slash is a vault, shown with its versions; brackets in texts stay."""
    _, buffer, _ = run("show", "walk", "--url", served.url)
    _, vault, _ = run("show", "walk/run1", "--url", served.url)
    _, text, _ = run("show", "walk/run1", "--url", served.url, "--json")

    assert "flat" in buffer and "capacity" in buffer and "obs  float32 [2]" in buffer
    assert "Versions (1)" in vault and "Twenty [steps]" in vault
    assert json.loads(text)["versions"][0]["tags"] == ["first"]


def test_scan_finds_vaults(served):
    """The server looks into its folders and says what it found."""
    status, text, _ = run("scan", "--url", served.url, "--json")

    assert status == 0
    assert isinstance(json.loads(text), dict)


def test_the_address_is_found_in_the_data_directory(served):
    """On the server's machine, naming its data directory is enough."""
    status, text, _ = run("ls", "--json", FLASHDECK_DATA=str(served.folder / "data"))

    assert status == 0
    assert json.loads(text)["buffers"][0]["name"] == "walk"


def test_an_unknown_name_is_one_sentence(served):
    """No traceback; the status is 1."""
    status, out, err = run("show", "nowhere", "--url", served.url)

    assert status == 1
    assert out == ""
    assert err.startswith("Error: ") and "nowhere" in err and "Traceback" not in err


def test_nobody_answering_is_one_sentence():
    """The sentence asks whether the server runs."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    status, _, err = run("ls", "--url", f"http://127.0.0.1:{port}")

    assert status == 1
    assert "Is it running?" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--host", "0.0.0.0"], "`host` must be a loopback address while there is no token, got '0.0.0.0'."),
        (["--workers", "2"], "`workers` must be 1, got 2."),
        (["--port", "70000"], "`port` must be less than or equal to 65535, got 70000."),
        (["--host", "192.0.2.1", "--insecure"], "must be an address of this machine"),
        (["--database-url", "mysql://x/y"], "`database_url` must begin with"),
        (["--data", "/proc/nowhere"], "`data` must be a folder that takes files, got '/proc/nowhere' ("),
        (["--vaults", "/nope"], "`vaults` must be a folder that exists, got '/nope'. "),
        (["--data", "/dev/null"], "`data` must be a folder that takes files, got '/dev/null' (File exists)."),
    ],
)
def test_what_cannot_be_served_is_refused(arguments, sentence, tmp_path):
    """One sentence, before anything is started."""
    status, out, err = run("serve", "--port", "0", "--data", str(tmp_path / "data"), *arguments)

    assert status == 1
    assert sentence in err and "Traceback" not in err
    assert "Flashdeck is at" not in out


def test_a_port_in_use_is_said_clearly(served):
    """The sentence names the port and what to do."""
    port = served.url.rpartition(":")[2]
    status, _, err = run("serve", "--port", port, "--data", str(served.folder / "other"))

    assert status == 1
    assert f"`port` must be free, got {port}" in err and "--port" in err


def test_a_data_directory_in_use_is_refused(served):
    """Two servers never write into one directory."""
    status, _, err = run("serve", "--port", "0", "--data", str(served.folder / "data"))

    assert status == 1
    assert "data directory must be free" in err and served.url in err
    assert "Traceback" not in err


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_time(sign, tmp_path):
    """Also while somebody holds a connection open, and without a traceback."""
    with serve(tmp_path) as server, Client(server.url) as client:
        client.buffers()
        started = time.monotonic()
        server.process.send_signal(sign)
        server.process.wait(15)

    assert time.monotonic() - started < 10
    assert "Traceback" not in server.log


def test_db_upgrade_makes_the_tables(tmp_path):
    """A fresh SQLite database is at the newest migration, also the second time."""
    first = run("db", "upgrade", "--data", str(tmp_path / "data"))
    second = run("db", "upgrade", "--data", str(tmp_path / "data"))

    assert first[0] == second[0] == 0
    assert "The database is at migration 0" in first[1]
    assert (tmp_path / "data" / "flashdeck.db").is_file()


def test_help_is_short():
    """Every command has a line."""
    status, text, _ = run("--help")

    assert status == 0
    assert all(word in text for word in ("serve", "demo", "scan", "ls", "show", "db"))


def test_a_kept_token_is_made_once(tmp_path):
    """The next start finds the same token; nobody else can read it."""
    from app.server import kept_token

    token = kept_token(tmp_path)
    assert kept_token(tmp_path) == token
    assert len(token) >= 32
    assert (tmp_path / "token").stat().st_mode & 0o077 == 0


def test_a_taken_port_is_a_conflict():
    """The error is the same in process."""
    from app.server import listen
    from app.settings import Settings

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConflictError, match="must be free"):
        listen(Settings(port=taken.getsockname()[1]))


def test_more_workers_are_refused_with_the_reason():
    """A buffer lives in one process."""
    from app.server import check_workers

    with pytest.raises(InvalidArgumentError, match="A buffer lives in the process that serves it"):
        check_workers(4)


def test_prepare_sets_the_process_up(tmp_path):
    """Dispatch, cache, switch interval and allocator are set before JAX starts; a set cache is kept."""
    code = f"""
import sys
from pathlib import Path
from app.process import prepare
from app.settings import Settings
prepare(Settings(data=Path({str(tmp_path)!r})))
import jax
print(jax.config.read("jax_cpu_enable_async_dispatch"), jax.config.jax_compilation_cache_dir,
      jax.config.jax_persistent_cache_min_compile_time_secs,
      round(sys.getswitchinterval(), 6), jax.default_backend())
"""
    clean = {name: value for name, value in environment().items() if not name.startswith("JAX_")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean, timeout=60)

    assert done.stdout.split() == ["False", f"{tmp_path}/jax-cache", "0.0", "5e-05", "cpu"], done.stderr


@pytest.mark.skipif(
    not hasattr(os, "confstr") or "glibc" not in os.confstr("CS_GNU_LIBC_VERSION"), reason="glibc"
)
def test_glibc_accepts_the_thresholds():
    """Values that glibc silently refuses would be no setting at all."""
    assert process.keep_freed_pages()


def test_gc_asks_the_server(served):
    """Its answer for each vault; a dry run deletes nothing, and an unknown vault is status 1."""
    status, text, complaint = run("gc", "--url", served.url, "--dry-run", "--grace", "0", "--json")
    assert (status, complaint) == (0, "")
    (swept,) = json.loads(text)
    assert (swept["vault"], swept["dry_run"], swept["deleted_versions"]) == ("walk/run1", True, [])

    status, text, _ = run("gc", "walk/none", "--url", served.url, "--json")
    assert (status, "No vault named" in json.loads(text)[0]["error"]) == (1, True)
    assert "waiting bytes" in run("gc", "--url", served.url)[1]


def test_gc_finds_the_server_of_a_data_directory(served):
    """With `--data` of a served directory it does not touch the files itself."""
    status, text, complaint = run("gc", "--data", str(served.folder / "data"), "--json")

    assert (status, complaint, json.loads(text)[0]["vault"]) == (0, "", "walk/run1")


@pytest.fixture
def data(tmp_path):
    """A data directory without a server, with a vault of three versions."""
    from fbxcore.spec import parse_spec
    from fbxcore.vault.versions import create_version

    with VaultWriter.create(tmp_path / "vaults" / "a" / "1", parse_spec(SPEC)) as writer:
        for _ in range(3):
            writer.append({"obs": np.ones((1, 5, 2), np.float32)})
            create_version(writer, tmp_path / "catalog" / "a" / "1")
    return tmp_path


def test_gc_works_on_files_without_a_server(data):
    """Retention and sweep are the same; what is left verifies."""
    status, text, complaint = run("gc", "--data", str(data), "--keep", "1", "--grace", "0", "--json")
    assert (status, complaint) == (0, "")
    (swept,) = json.loads(text)
    assert swept["deleted_versions"] == [1, 2] and swept["files"] > 0

    status, text, _ = run("verify", "a/1", "--data", str(data), "--json")
    assert (status, json.loads(text)) == (
        0, [{"vault": "a/1", "is_whole": True, "length": 15, "versions": 1, "findings": []}]
    )  # fmt: skip


def test_verify_finds_and_repairs(data):
    """Bytes behind the manifest are found (status 1), cut with `--repair` (0); a broken chunk stays told."""
    manifest = data / "vaults" / "a" / "1" / "manifest.ocdbt"
    manifest.write_bytes(manifest.read_bytes() + b"left behind")
    status, table, _ = run("verify", "--data", str(data))
    assert status == 1 and "11 bytes stand behind" in table
    status, table, _ = run("verify", "--data", str(data), "--repair")
    assert status == 0 and "(repaired)" in table

    for file in (data / "vaults" / "a" / "1" / "d").iterdir():
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    status, text, _ = run("verify", "--data", str(data), "--json")
    assert status == 1 and not json.loads(text)[0]["is_whole"]


@pytest.mark.parametrize("command", ["verify", "gc"])
def test_a_data_directory_that_is_not_there_is_refused(tmp_path, command):
    """A mistyped path is an error, not a list of no faults, and not made."""
    status, text, complaint = run(command, "--data", str(tmp_path / "mistyped"), "--json")

    assert (status, text) == (1, "") and complaint.startswith("Error: `data` must be")
    assert not list(tmp_path.iterdir())


def write_over(path):
    """Write over one step as a program that has only half finished, and hide the others behind a length."""
    with VaultWriter.open(path) as writer:
        writer._database.arrays["obs"][:, 2:3].write(np.full((1, 1, 2), 7, np.float32)).result()
        writer._database.index.write([3]).result()


def test_verify_adopts_what_another_program_wrote(data, tmp_path):
    """It is found (status 1) and named; with `--adopt` ours follow theirs, and the vault is whole again."""
    write_over(data / "vaults" / "a" / "1")
    status, table, _ = run("verify", "--data", str(data))
    assert status == 1 and "timesteps 2 to 15 of ours" in table

    status, text, _ = run("verify", "--adopt", "--data", str(data), "--json")
    assert (status, json.loads(text)[0]["length"]) == (0, 3 + 13)


def test_verify_asks_the_server_to_adopt(served):
    """Where one runs, it has the vault open."""
    status, text, complaint = run("verify", "--adopt", "--data", str(served.folder / "data"), "--json")
    assert (status, complaint) == (0, "")
    assert json.loads(text)[0]["is_whole"]


def test_backup_and_restore(served, tmp_path):
    """A copy of a served directory, made into a new one; what is there is never overwritten."""
    copy, new = str(tmp_path / "copy"), str(tmp_path / "new")
    status, text, complaint = run("backup", copy, "--data", str(served.folder / "data"), "--json")
    assert (status, complaint, json.loads(text)["vaults"]) == (0, "", ["walk/run1"])
    assert run("restore", copy, "--data", new)[0] == 0
    assert run("verify", "walk/run1", "--data", new)[0] == 0

    status, _, complaint = run("restore", copy, "--data", new)
    assert (status, "must be a new or empty directory" in complaint) == (1, True)
