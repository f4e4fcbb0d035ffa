"""Real servers that tests start, each a process of its own: ours, a Kafka broker, object stores, and a proxy that does harm."""
