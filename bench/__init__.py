"""The benchmarks: `python -m bench`.

The idea: a scenario is one small module with `run(folder, options)`; each run is a process of its
own in a folder of its own, so that memory, caches and garbage of one don't reach another. Each
figure stands beside its target.

- `figure`: what a scenario returns. `scenarios`: the list of them.
- `runner`: runs them and takes medians.
- `isolated`: one call in one fresh process. `memory`: resident memory while something runs.
- `served`: a store that another process serves. `grpc_clients`: loads of RocketMQ's clients, for
  any server of their protocol; `beside_rocketmq` gives them to RocketMQ's proxy as well.
- `peers`: kvmq beside other stores, in works of their own.
"""
