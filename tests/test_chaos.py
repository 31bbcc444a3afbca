"""Kills at random moments under mixed load, a slow disk, a full one, a clock that jumps: nothing is lost.

The long forms print how many kills and acknowledged requests there were.
"""

import subprocess
import time
from collections import Counter

import numpy as np
import pytest

from tests.chaos import Play, Server, crew


def killed(folder, *, kills, seed, pause):
    """Kill a server at random moments, many of them while it starts; return how far everybody came."""
    random = np.random.default_rng(seed)
    server = Server(folder)
    with Play(server, crew()) as play:
        for _ in range(kills):
            time.sleep(pause * random.random())
            server.kill()
            server.start()
        time.sleep(1.5)
    return play, play.check()


def told(play, reached, kills):
    """Print what a long run came to."""
    refused = sum((actor.counts for actor in play.actors), Counter())
    print(f"\n{kills} kills; acknowledged {reached}; refused {dict(refused)}")


def test_kills_lose_nothing_and_repeat_nothing(tmp_path):
    """After a few kills everything acknowledged is there once, in each writer's order."""
    _, reached = killed(tmp_path, kills=3, seed=0, pause=2.5)

    assert all(number > 3 for name, number in reached.items() if name.startswith("w"))
    assert reached["appender"] > 3


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_two_hundred_kills_lose_nothing(tmp_path, seed):
    """Four times fifty kills while it writes, compacts, makes versions, sweeps or starts."""
    told(*killed(tmp_path, kills=50, seed=seed + 1, pause=4.0), 50)


@pytest.mark.long
def test_half_an_hour_with_a_kill_every_minute(tmp_path):
    """A slow disk and a clock that jumps hours to and fro change nothing about it."""
    random = np.random.default_rng(5)
    server = Server(tmp_path)
    with Play(server, crew()) as play:
        for minute in range(30):
            for _ in range(6):
                server.suffer(
                    clock_s=float(random.choice([0, 0, -7200, 86_400 * 3])), sync_s=0.02 * random.random()
                )
                time.sleep(10)
            if minute < 29:
                server.kill()
                server.start()
        server.suffer(clock_s=0, sync_s=0)
        time.sleep(2)

    told(play, play.check(), 29)


@pytest.mark.long
def test_memory_and_files_stay_flat(tmp_path):
    """After a warm-up, minutes of mixed load leave memory and open files where they were."""
    server = Server(tmp_path)
    with Play(server, crew()) as play:
        time.sleep(120)
        resident, files = server.footprint()
        time.sleep(300)
        later = [server.footprint() for _ in range(5) if not time.sleep(2)]

    told(play, play.check(), 0)
    print(f"{resident >> 20} MiB and {files} files became {later}")
    assert min(r for r, _ in later) < 1.1 * resident + (32 << 20)
    assert min(f for _, f in later) <= files + 8


@pytest.mark.long
def test_a_full_disk_refuses_and_goes_on_when_there_is_room(tmp_path):
    """With no room left adds are 507 and leave no trace; with room again they go on without a restart."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "none", str(disk)], check=True)
    try:
        server = Server(tmp_path, disk / "data")
        with Play(server, crew()) as play:
            for _ in range(3):
                time.sleep(8)
                _fill(disk / "ballast")
                time.sleep(5)
                server.kill()
                (disk / "ballast").unlink()
                server.start()
            time.sleep(3)
            before = play.actors[0].number
            _fill(disk / "ballast")
            time.sleep(5)
            (disk / "ballast").unlink()
            time.sleep(5)
            assert play.actors[0].number > before
        told(play, play.check(), 3)
        assert sum((actor.counts for actor in play.actors), Counter())["507 disk_full"] > 0
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def _fill(path):
    """Write until there is no room."""
    with path.open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(bytes(4096))
        except OSError:
            pass
