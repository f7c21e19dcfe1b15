"""The Kafka protocol: API keys, message schemas, frames."""
