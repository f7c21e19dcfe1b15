"""The records of `__consumer_offsets`, byte for byte as Apache Kafka's group coordinator writes them."""
