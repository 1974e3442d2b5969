"""Every call of a store, in one class: `Store` has them, `kvstore.namespace` passes them on."""

from __future__ import annotations

from kvstore.calls.exchanging import Exchanging
from kvstore.calls.namespaces import Naming
from kvstore.calls.offsets import Keeping
from kvstore.calls.popping import Popping
from kvstore.calls.putting import Putting
from kvstore.calls.reading import Reading


class Calls(Putting, Reading, Popping, Naming, Exchanging, Keeping):
    """See the module."""
