"""kvmq beside other stores: `make bench-peers`.

The idea: `work` does the same with every store, and counts; each store is a `Peer`, a few calls in
its own client. A round runs each peer in turn, each work in a process and a folder of its own;
figures are medians over rounds. Every work of everybody runs for seconds that do not count, since
the JVM is slow until it has compiled, and then for seconds that do. A peer that has no such call
has no figure.

Durability is the same for all: what was acknowledged survives the process, and is flushed within
half a second (within one in Redis, which has no other setting); where threads sync, before it is
acknowledged.

- `installing`: the peers' own packages, in a folder that git ignores.
- `work`: the works, and the command of one process. `rocketmq/`: the same in Java.
- `peer_*`: the stores. `page`: docs/benchmarks.md, its plots, its targets, and README's rows.
"""
