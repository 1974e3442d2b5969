"""Trial: the verbs that try kvmq out, the demo and a small benchmark.

Begin with `demo`; `measure` has the timed runs of `bench`, `draws` the repeatable choices. The
repository's `bench/` has the full benchmarks. May import `cli.terminal`, and every room that `cli`
may.
"""
