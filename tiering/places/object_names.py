"""Object names: an archive's name in a place: the store's id, then first position, number and
class.

The idea: a name identifies the store and the archive. So many stores may share a place, and a
place's list can be sorted without reading objects. All objects of jobs lie in a folder beside the
store's, so that they are not listed with the store's own archives; the commits (`commits`) say
which of them count. All names of jobs' objects hold numbers, so that new objects are found without
listing the rest.

Invariants: no two archives of any store have the same name; no job's object has a name that a
worker's object could have.
"""

from __future__ import annotations

import re
from typing import Final

SUFFIX: Final = ".kvarc"
NAME: Final = re.compile(rf"([0-9a-f]{{32}})/(\d{{20}})-(\d{{8,}})-([^/]*){re.escape(SUFFIX)}")
"""An archive's name: store id, first position, number, class."""
JOBS_FOLDER: Final = re.compile(r"([0-9a-f]{32})-jobs")
"""The folder of all objects that a store's jobs put: store id."""
OF_JOB: Final = re.compile(r"([0-9a-f]{32})-jobs/made/(\d{8})/(\d{12})-([0-9a-f]{32})/")
"""The part of a name that all archives of a job have, unfinished or not: store id, group, the
number of commits when the job began, job.
"""
OF_VERSION_1: Final = re.compile(r"([0-9a-f]{32})/job-([0-9a-f]{32})\.commit")
"""A commit's name before format 2: store id, job."""
GROUP: Final = 256
"""The number of commits in one group of jobs' archives."""


def is_of_jobs(key: str) -> bool:
    """Whether an object is one that jobs put into a place."""
    return JOBS_FOLDER.fullmatch(key.partition("/")[0]) is not None


def jobs_folder(store_id: str) -> str:
    """The prefix of the names of all objects that a store's jobs put."""
    return f"{store_id}-jobs/"


def group_folder(store_id: str, group: int) -> str:
    """The prefix of the names of a group's archives."""
    return f"{store_id}-jobs/made/{group:08d}/"


def job_name(begun: int, job: str) -> str:
    """The name of a job; it differs from that of an earlier attempt at the same work."""
    return f"{begun:012d}-{job}"


def job_folder(store_id: str, begun: int, job: str) -> str:
    """The prefix of the names of a job's archives."""
    return f"{group_folder(store_id, begun // GROUP)}{job_name(begun, job)}/"


def job_object_key(
    store_id: str, begun: int, job: str, first_position: int, number: int, class_name: str
) -> str:
    """The name of an archive that a job made."""
    file = f"{first_position:020d}-{number:08d}-{class_name}{SUFFIX}"
    return job_folder(store_id, begun, job) + file


def commit_key(store_id: str, number: int) -> str:
    """The name of a commit."""
    return f"{store_id}-jobs/commits/{number:012d}.commit"


def page_key(store_id: str, number: int) -> str:
    """The name of a page, by the number of its first commit."""
    return f"{store_id}-jobs/pages/{number:012d}.page"


def checkpoint_key(store_id: str) -> str:
    """The name of the checkpoint."""
    return f"{store_id}-jobs/checkpoint"


def ids_key(store_id: str, number: int) -> str:
    """The name of a list of topic ids."""
    return f"{store_id}-jobs/topics/{number:08d}.ids"


def object_key(store_id: bytes, first_position: int, number: int, class_name: str) -> str:
    """An archive's name in its place."""
    return f"{store_id.hex()}/{first_position:020d}-{number:08d}-{class_name}{SUFFIX}"
