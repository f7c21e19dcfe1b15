"""HDFS and lakes for tests."""
