"""What is known about messages, in RocksDB: keys, runs, queues, checkpoint."""
