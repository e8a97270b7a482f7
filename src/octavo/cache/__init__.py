"""What an engine holds: the `Cache`, its sequences, batches and steps, over the core."""
