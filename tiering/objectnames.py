"""How archives are called in a place: the store's id, then first position, number and class.

The idea: a name says whose an archive is and which, so that many stores may share a place, and what
a place lists can be sorted without reading it. Archives that a job makes lie in the job's folder;
they count if the job's commit object names them (`commits`).

Invariants: no two archives of any store have the same name; what a job makes has no name that one
of a worker could have.
"""

from __future__ import annotations

import re
from typing import Final

SUFFIX: Final = ".kvarc"
NAME: Final = re.compile(rf"([0-9a-f]{{32}})/(\d{{20}})-(\d{{8,}})-([^/]*){re.escape(SUFFIX)}")
"""An archive's name: store id, first position, number, class."""
JOB_NAME: Final = re.compile(
    rf"([0-9a-f]{{32}})/job-([0-9a-f]{{32}})/(\d{{20}})-(\d{{8,}})-([^/]*){re.escape(SUFFIX)}"
)
"""The name of an archive that a job made: store id, job, first position, number, class."""
OF_JOB: Final = re.compile(r"([0-9a-f]{32})/job-([0-9a-f]{32})/")
"""What is in the name of all that a job puts, unfinished or not: store id, job."""
COMMIT_NAME: Final = re.compile(r"([0-9a-f]{32})/job-([0-9a-f]{32})\.commit")
"""A commit object's name: store id, job."""
IDS_NAME: Final = re.compile(r"([0-9a-f]{32})/topics-(\d{8})\.ids")
"""The name of a list of topic ids: store id, number."""


def is_of_jobs(key: str) -> bool:
    """Whether an object is what jobs put into a place."""
    return any(name.fullmatch(key) for name in (JOB_NAME, COMMIT_NAME, IDS_NAME))


def jobs_prefix(store_id: str) -> str:
    """What the names of all that a store's jobs make begin with."""
    return f"{store_id}/job-"


def job_folder(store_id: str, job: str) -> str:
    """What the names of a job's archives begin with."""
    return f"{store_id}/job-{job}/"


def job_object_key(
    store_id: str, job: str, first_position: int, number: int, class_name: str
) -> str:
    """The name of an archive that a job made."""
    file = f"{first_position:020d}-{number:08d}-{class_name}{SUFFIX}"
    return job_folder(store_id, job) + file


def commit_key(store_id: str, job: str) -> str:
    """The name of a job's commit object."""
    return f"{store_id}/job-{job}.commit"


def ids_key(store_id: str, number: int) -> str:
    """The name of a list of topic ids."""
    return f"{store_id}/topics-{number:08d}.ids"


def object_key(store_id: bytes, first_position: int, number: int, class_name: str) -> str:
    """An archive's name in its place."""
    return f"{store_id.hex()}/{first_position:020d}-{number:08d}-{class_name}{SUFFIX}"
