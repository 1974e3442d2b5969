"""Ships the orders that a Java program takes, and says so to another one; README.md has the whole.

python -m examples.java_orders.ship_orders data
"""

from __future__ import annotations

import signal
import sys

import kvstore
from kvstore import Popped


def main(folder: str) -> None:
    """Ships until ctrl-C or SIGTERM."""
    with kvstore.connect(folder) as store:
        store.create_group("shipping", exist_ok=True)

        def ship(popped: Popped) -> None:
            order = popped.message
            region = order.user_properties["region"]
            store.put("shipped", b"%b to %b" % (order.body, region.encode()), keys=order.keys)

        with store.consume("shipping", "orders", ship) as consumer:
            signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
            consumer.wait()


if __name__ == "__main__":
    main(sys.argv[1])
