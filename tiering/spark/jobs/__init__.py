"""Jobs: the worker's own steps, done by Spark's tasks instead of a process of its own."""
