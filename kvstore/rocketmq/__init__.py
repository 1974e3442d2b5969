"""Apache RocketMQ's own files: consume queues, configuration, and the adoption of a whole store."""
