"""Trial: the verbs that try kvmq out, the demo and a small benchmark.

Begin with `demo`; `measure` has the benchmark. Not in here: the full benchmarks, which are in the
repository's `bench/`. May import `cli.terminal`, and every room that `cli` may.
"""
