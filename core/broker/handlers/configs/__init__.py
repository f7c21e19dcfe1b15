"""DescribeConfigs and AlterConfigs, of topics, brokers and loggers."""
