"""`make registry-clients`: foreign clients of the schema registry, each as its own program, against one broker.

A program is started twice with the path of a JSON file, its orders: `client`, `mode`, `registry` (an address),
`bootstrap`, `incompatible` (a text that a refusal must have), `descriptors` (base64 of a FileDescriptorSet), `record`,
`formats` (by name: `type`, `topic`, and the texts `line`, `order`, `evolved` and `refused`; the last three refer to
`line` as `line_name`), and `topics` (`name`, `format`).

With mode `write` it registers, evolves, is refused and so on, writes `record` to its topic of each format, and prints a
line of JSON for each feature: `feature` and `problem`, null if there is none. With mode `read` it prints for each of
`topics` the record that it reads there: `topic`, `record`, `problem`.
"""
