module klamm.test/registry-client

go 1.25.0

require (
	github.com/hamba/avro/v2 v2.31.0
	github.com/riferrei/srclient v0.7.3
	github.com/twmb/franz-go v1.20.7
	github.com/twmb/franz-go/pkg/sr v1.8.0
	google.golang.org/protobuf v1.36.11
)
