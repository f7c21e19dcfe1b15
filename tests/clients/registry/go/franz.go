package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/hamba/avro/v2"
	"github.com/twmb/franz-go/pkg/sr"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

type franz struct {
	client *sr.Client
	proto  protoreflect.MessageDescriptor
}

func newFranz() *franz {
	client, err := sr.NewClient(sr.URLs(given.Registry))
	if err != nil {
		panic(err)
	}
	return &franz{client, orderDescriptor()}
}

func orderDescriptor() protoreflect.MessageDescriptor {
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(given.Descriptors, &set); err != nil {
		panic(err)
	}
	files, err := protodesc.NewFiles(&set)
	if err != nil {
		panic(err)
	}
	found, err := files.FindDescriptorByName("shop.Order")
	if err != nil {
		panic(err)
	}
	return found.(protoreflect.MessageDescriptor)
}

func kind(name string) sr.SchemaType {
	return map[string]sr.SchemaType{"avro": sr.TypeAvro, "json": sr.TypeJSON, "protobuf": sr.TypeProtobuf}[name]
}

func refused(err error, code int, text string) error {
	var answer *sr.ResponseError
	if errors.As(err, &answer) {
		return told(err, answer.ErrorCode, code, text)
	}
	return told(err, 0, code, text)
}

func (f *franz) work(ctx context.Context, name string, t texts) {
	subject, lineSubject := t.Topic+"-value", t.Topic+"-line"
	references := []sr.SchemaReference{{Name: t.LineName, Subject: lineSubject, Version: 1}}
	schema := func(text string) sr.Schema { return sr.Schema{Schema: text, Type: kind(name), References: references} }
	single := func(text string) sr.Schema { return sr.Schema{Schema: text, Type: kind(name)} }
	var evolved sr.SubjectSchema
	feature(name+" register", func() error {
		if _, err := f.client.CreateSchema(ctx, lineSubject, single(t.Line)); err != nil {
			return err
		}
		made, err := f.client.CreateSchema(ctx, subject, schema(t.Order))
		if err != nil {
			return err
		}
		found, err := f.client.LookupSchema(ctx, subject, schema(t.Order))
		if err != nil {
			return err
		}
		return wanted("looked up", found.ID == made.ID && found.Version == 1, found)
	})
	feature(name+" evolve", func() (err error) {
		check, err := f.client.CheckCompatibility(ctx, subject, -1, schema(t.Evolved))
		if err != nil || !check.Is {
			return fmt.Errorf("compatible: %v, %v", check, err)
		}
		if evolved, err = f.client.CreateSchema(ctx, subject, schema(t.Evolved)); err != nil {
			return err
		}
		versions, err := f.client.SubjectVersions(ctx, subject)
		if err != nil {
			return err
		}
		return wanted("versions", len(versions) == 2 && evolved.Version == 2, versions)
	})
	feature(name+" refused", func() error {
		check, err := f.client.CheckCompatibility(sr.WithParams(ctx, sr.Verbose), subject, -1, schema(t.Refused))
		if err != nil || check.Is || len(check.Messages) == 0 {
			return fmt.Errorf("compatible: %v, %v", check, err)
		}
		_, err = f.client.CreateSchema(ctx, subject, schema(t.Refused))
		if err := refused(err, 40901, given.Incompatible); err != nil {
			return err
		}
		_, err = f.client.CreateSchema(ctx, subject, single("{"))
		return refused(err, 42201, "")
	})
	feature(name+" by id", func() error {
		found, err := f.client.SchemaByID(ctx, evolved.ID)
		if err != nil {
			return err
		}
		if found.Schema != evolved.Schema.Schema || found.Type != kind(name) {
			return fmt.Errorf("by id: %v, not %v", found, evolved)
		}
		byGUID, err := f.client.SchemaByGUID(ctx, evolved.GUID)
		if err != nil || byGUID.Schema.Schema != found.Schema {
			return fmt.Errorf("by guid: %v, %v", byGUID, err)
		}
		usages, err := f.client.SchemaUsagesByID(ctx, evolved.ID)
		if err != nil || len(usages) != 1 {
			return fmt.Errorf("usages: %v, %v", usages, err)
		}
		_, err = f.client.SchemaByID(ctx, 1<<30)
		return refused(err, 40403, "Schema 1073741824 not found")
	})
	feature(name+" references", func() error {
		found, err := f.client.SchemaReferences(ctx, lineSubject, 1)
		if err != nil || len(found) != 2 {
			return fmt.Errorf("referenced by %v, %v", found, err)
		}
		return refused(f.client.DeleteSchema(ctx, lineSubject, 1, sr.SoftDelete), 42206, "One or more references exist")
	})
	feature(name+" config and mode", func() error {
		set := f.client.SetCompatibility(ctx, sr.SetCompatibility{Level: sr.CompatFull}, subject)
		got := f.client.Compatibility(ctx, subject)
		if set[0].Err != nil || got[0].Err != nil || got[0].Level != sr.CompatFull {
			return fmt.Errorf("config: %v, %v", set, got)
		}
		if mode := f.client.SetMode(ctx, sr.ModeReadOnly, subject); mode[0].Err != nil {
			return mode[0].Err
		}
		_, err := f.client.CreateSchema(ctx, subject, single(t.Line))
		if err := refused(err, 42205, "is in read-only mode"); err != nil {
			return err
		}
		if mode := f.client.ResetMode(ctx, subject); mode[0].Err != nil {
			return mode[0].Err
		}
		return f.client.ResetCompatibility(ctx, subject)[0].Err
	})
	feature(name+" context and ids", func() error {
		inside := sr.InContext(ctx, "."+name)
		if mode := f.client.SetMode(sr.WithParams(inside, sr.Force), sr.ModeImport, t.Topic); mode[0].Err != nil {
			return mode[0].Err
		}
		made, err := f.client.CreateSchemaWithIDAndVersion(inside, t.Topic, single(t.Line), 4711, 9)
		if err != nil || made.ID != 4711 || made.Version != 9 {
			return fmt.Errorf("imported: %v, %v", made, err)
		}
		contexts, err := f.client.Contexts(ctx)
		if err != nil {
			return err
		}
		return wanted("contexts", len(contexts) > 1, contexts)
	})
	feature(name+" delete", func() error {
		subject := t.Topic + "-deleted"
		if _, err := f.client.CreateSchema(ctx, subject, single(t.Line)); err != nil {
			return err
		}
		for _, how := range []sr.DeleteHow{sr.SoftDelete, sr.HardDelete} {
			if versions, err := f.client.DeleteSubject(ctx, subject, how); err != nil || len(versions) != 1 {
				return fmt.Errorf("deleted: %v, %v", versions, err)
			}
		}
		_, err := f.client.SubjectVersions(ctx, subject)
		return refused(err, 40401, fmt.Sprintf("Subject '%s' not found.", subject))
	})
	feature(name+" write", func() error {
		serde := sr.NewSerde()
		serde.Register(evolved.ID, order{}, sr.EncodeFn(func(any) ([]byte, error) {
			return f.encoded(ctx, name, evolved.Schema)
		}), sr.Index(index(name)...))
		value, err := serde.Encode(given.Record)
		if err != nil {
			return err
		}
		return send(ctx, t.Topic, value)
	})
}

func index(name string) []int {
	if name == "protobuf" {
		return []int{0}
	}
	return nil
}

func (f *franz) encoded(ctx context.Context, name string, schema sr.Schema) ([]byte, error) {
	if name == "avro" {
		parsed, err := f.avro(ctx, schema)
		if err != nil {
			return nil, err
		}
		return avro.Marshal(parsed, given.Record)
	}
	data, err := json.Marshal(given.Record)
	if err != nil || name == "json" {
		return data, err
	}
	message := dynamicpb.NewMessage(f.proto)
	if err := protojson.Unmarshal(data, message); err != nil {
		return nil, err
	}
	return proto.Marshal(message)
}

// avro parses a schema after those that it refers to.
func (f *franz) avro(ctx context.Context, schema sr.Schema) (avro.Schema, error) {
	cache := &avro.SchemaCache{}
	for _, reference := range schema.References {
		found, err := f.client.SchemaByVersion(ctx, reference.Subject, reference.Version)
		if err != nil {
			return nil, err
		}
		if _, err := avro.ParseWithCache(found.Schema.Schema, "", cache); err != nil {
			return nil, err
		}
	}
	return avro.ParseWithCache(schema.Schema, "", cache)
}

func (f *franz) decode(ctx context.Context, format string, value []byte) (found order, err error) {
	var header sr.ConfluentHeader
	id, rest, err := header.DecodeID(value)
	if err != nil {
		return found, err
	}
	schema, err := f.client.SchemaByID(ctx, id)
	if err != nil {
		return found, err
	}
	switch format {
	case "avro":
		parsed, err := f.avro(ctx, schema)
		if err != nil {
			return found, err
		}
		return found, avro.Unmarshal(parsed, rest, &found)
	case "json":
		return found, json.Unmarshal(rest, &found)
	}
	at, rest, err := header.DecodeIndex(rest, 1)
	if err != nil || len(at) != 1 || at[0] != 0 {
		return found, fmt.Errorf("message index %v, %v", at, err)
	}
	message := dynamicpb.NewMessage(f.proto)
	if err := proto.Unmarshal(rest, message); err != nil {
		return found, err
	}
	fields := f.proto.Fields()
	lines := message.Get(fields.ByName("lines")).List()
	for i := range lines.Len() {
		one := lines.Get(i).Message()
		of := one.Descriptor().Fields()
		found.Lines = append(found.Lines, line{
			one.Get(of.ByName("sku")).String(), int(one.Get(of.ByName("count")).Int()),
		})
	}
	found.ID = message.Get(fields.ByName("id")).Int()
	found.Note = message.Get(fields.ByName("note")).String()
	found.Amount = message.Get(fields.ByName("amount")).Float()
	found.Currency = message.Get(fields.ByName("currency")).String()
	return found, nil
}
