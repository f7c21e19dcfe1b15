"""A real single-node HDFS for development, the demo and the tests: one NameNode and one DataNode."""
