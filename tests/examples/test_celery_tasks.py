"""Celery's own workers over a served store: order, time, and the death of a worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.served import ServerThread
from tests.support.waiting import until

ROOT = Path(__file__).parent.parent.parent


class Workers:
    """Processes of Celery, each with a group of its own, so that a test kills all of one."""

    def __init__(self, url: str, folder: Path) -> None:
        self.notes = folder / "notes"
        self._url = url
        self._folder = folder
        self._environment = {
            **os.environ, "BROKER": url, "NOTES": str(self.notes), "PYTHONPATH": str(ROOT),
            "LOCK": "2",
        }  # fmt: skip
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        app = ["-A", "examples.celery_tasks", "-b", self._url]
        command = [sys.executable, "-m", "celery", *app, "worker"]
        with (self._folder / f"log{len(self.running)}").open("wb") as log:
            self.running.append(
                subprocess.Popen(
                    [*command, "-c", "1", "--without-gossip", "--without-mingle"],
                    env=self._environment, cwd=self._folder, stderr=log, stdout=log,
                    start_new_session=True,
                )
            )  # fmt: skip

    def kill(self, how: int = signal.SIGKILL) -> None:
        os.killpg(self.running[-1].pid, how)
        self.running[-1].wait()

    def send(self, calls: str) -> None:
        program = f"from examples.celery_tasks import ship\n{calls}"
        subprocess.run([sys.executable, "-c", program], env=self._environment, check=True)

    def lines(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []


@pytest.fixture
def workers(server: ServerThread, tmp_path: Path) -> Iterator[Workers]:
    made = Workers(server.url, tmp_path)
    yield made
    for one in made.running:
        if one.poll() is None:
            os.killpg(one.pid, signal.SIGKILL)
            one.wait()


def wait_for(workers: Workers, is_there: Callable[[list[str]], bool]) -> list[str]:
    until(lambda: is_there(workers.lines()), 60)
    return workers.lines()


def test_tasks_run_by_priority_and_at_their_time(workers: Workers) -> None:
    workers.send(
        "ship.apply_async(('late',), countdown=4)\n"
        "ship.apply_async(('low',), priority=1)\n"
        "ship.apply_async(('high',), priority=9)\n"
        "ship.apply_async(('expired',), expires=0.001)\n"
    )
    workers.start()
    found = wait_for(workers, lambda lines: "end late" in lines)
    assert found == [
        f"{what} {order}" for order in ("high", "low", "late") for what in ("begin", "end")
    ]


def test_the_task_of_a_worker_that_was_killed_runs_in_another(workers: Workers) -> None:
    workers.start()
    workers.send("ship.delay('order', 2)")
    wait_for(workers, lambda lines: "begin order" in lines)
    workers.kill()
    workers.start()
    found = wait_for(workers, lambda lines: "end order" in lines)
    assert found == ["begin order", "begin order", "end order"]


def test_a_worker_that_is_told_to_stop_ends_its_task_and_leaves_the_others(
    workers: Workers, server: ServerThread
) -> None:
    workers.start()
    # Celery takes messages for two more seconds.
    workers.send("ship.delay('first', 6)\nship.delay('second')")
    wait_for(workers, lambda lines: "begin first" in lines)
    workers.running[-1].send_signal(signal.SIGTERM)
    workers.running[-1].wait(30)
    assert workers.lines() == ["begin first", "end first"]
    (stats,) = server.store.group_stats("celery", "celery")
    assert stats.unread + stats.due == 1
