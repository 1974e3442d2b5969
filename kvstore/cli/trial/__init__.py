"""Trial: the verbs that try kvmq out, the demo and a small benchmark.

Begin with `demo`; `demo_source` has its input, `killed_writer` the process that it kills, `measure`
the benchmark. Not in here: the full benchmarks, which are in the repository's `bench/`. May import
`cli.terminal`, and every room that `cli` may.
"""
