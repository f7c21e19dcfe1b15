"""Protobuf in the registry: `schema.parse` checks a text, `comparison.differences` compares two schemas.

A `.proto` text is compiled by protoc in a process of its own (`compiler`), in a folder that has only the text, its
references and the well-known imports. Needs the packages of the extra `registry`.
"""
