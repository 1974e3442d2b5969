"""What is known about messages, in RocksDB: key layouts, packed runs, queues, message keys, checkpoint."""
