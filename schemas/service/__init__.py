"""The schema registry as an HTTP service (Confluent's API): `topic` follows and writes the topic of schemas, `formats`
has the three kinds of schemas, `api` is each endpoint without HTTP, `app` the HTTP, `service` the life cycle."""
