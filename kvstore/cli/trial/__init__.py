"""Trial: the verbs that try kvmq out, the demo and a small benchmark.

Begin with `demo`; `measure` has the benchmark. The repository's `bench/` has the full ones. May
import `cli.terminal`, and every room that `cli` may.
"""
