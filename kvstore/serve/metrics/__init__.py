"""Metrics: what a served store tells Prometheus.

In here: the collector, which reads a store's figures when it is asked (`store_metrics`), the choice
of topics and groups that have series of their own (`chosen`), and the counts that the server's
doors keep (`server_counts`). Not in here: the figures themselves, which are `engine.stats` and
`pop.progress`; and the door by which Prometheus asks. Begin with `store_metrics`. Docs/metrics.md
lists the metrics. May import `api` and the rooms below it.
"""
