"""Consumer groups, by both doors: the paper's registry and Kafka's classic protocol."""
