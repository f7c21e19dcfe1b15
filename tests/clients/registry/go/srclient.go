package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/hamba/avro/v2"
	"github.com/riferrei/srclient"
)

// plain has no framing of its own: its users write the magic byte and the id themselves.
type plain struct {
	client *srclient.SchemaRegistryClient
}

func newSrclient() *plain {
	client := srclient.NewSchemaRegistryClient(given.Registry)
	client.CodecCreationEnabled(false)
	return &plain{client}
}

func answered(err error, code int, text string) error {
	var answer srclient.Error
	if errors.As(err, &answer) {
		return told(fmt.Errorf("%s", answer.Message), answer.Code, code, text)
	}
	return told(err, 0, code, text)
}

func (p *plain) work(ctx context.Context, name string, t texts) {
	subject, lineSubject := t.Topic+"-value", t.Topic+"-line"
	reference := srclient.Reference{Name: t.LineName, Subject: lineSubject, Version: 1}
	of := srclient.SchemaType(t.Type)
	var evolved *srclient.Schema
	feature(name+" register", func() error {
		if _, err := p.client.CreateSchema(lineSubject, t.Line, of); err != nil {
			return err
		}
		made, err := p.client.CreateSchema(subject, t.Order, of, reference)
		if err != nil {
			return err
		}
		found, err := p.client.LookupSchema(subject, t.Order, of, reference)
		if err != nil {
			return err
		}
		return wanted("looked up", found.ID() == made.ID() && found.Version() == 1, found)
	})
	feature(name+" evolve", func() (err error) {
		is, err := p.client.IsSchemaCompatible(subject, t.Evolved, "latest", of, reference)
		if err != nil || !is {
			return fmt.Errorf("compatible: %v, %v", is, err)
		}
		if evolved, err = p.client.CreateSchema(subject, t.Evolved, of, reference); err != nil {
			return err
		}
		versions, err := p.client.GetSchemaVersions(subject)
		if err != nil {
			return err
		}
		return wanted("versions", len(versions) == 2 && versions[1] == 2, versions)
	})
	feature(name+" refused", func() error {
		is, err := p.client.IsSchemaCompatible(subject, t.Refused, "latest", of, reference)
		if err != nil || is {
			return fmt.Errorf("compatible: %v, %v", is, err)
		}
		_, err = p.client.CreateSchema(subject, t.Refused, of, reference)
		if err := answered(err, 40901, given.Incompatible); err != nil {
			return err
		}
		_, err = p.client.CreateSchema(subject, "{", of)
		return answered(err, 42201, "")
	})
	feature(name+" by id", func() error {
		p.client.ResetCache()
		found, err := p.client.GetSchema(evolved.ID())
		if err != nil {
			return err
		}
		if found.Schema() != evolved.Schema() {
			return fmt.Errorf("by id: %s, not %s", found.Schema(), evolved.Schema())
		}
		_, err = p.client.GetSchema(1 << 30)
		return answered(err, 40403, "Schema 1073741824 not found")
	})
	feature(name+" references", func() error {
		found, err := p.client.GetSchemaByVersion(subject, 2)
		if err != nil {
			return err
		}
		if err := wanted("references", len(found.References()) == 1 && found.References()[0] == reference, found); err != nil {
			return err
		}
		return answered(p.client.DeleteSubjectByVersion(lineSubject, 1, false), 42206, "One or more references exist")
	})
	feature(name+" config", func() error {
		if _, err := p.client.ChangeSubjectCompatibilityLevel(subject, srclient.Full); err != nil {
			return err
		}
		level, err := p.client.GetCompatibilityLevel(subject, false)
		if err != nil {
			return err
		}
		return wanted("level", *level == srclient.Full, *level)
	})
	feature(name+" delete", func() error {
		subject := t.Topic + "-deleted"
		if _, err := p.client.CreateSchema(subject, t.Line, of); err != nil {
			return err
		}
		// It deletes softly first.
		if err := p.client.DeleteSubject(subject, true); err != nil {
			return err
		}
		_, err := p.client.GetSchemaVersions(subject)
		return answered(err, 40401, fmt.Sprintf("Subject '%s' not found.", subject))
	})
	feature(name+" write", func() error {
		data, err := json.Marshal(given.Record)
		if name == "avro" {
			var parsed avro.Schema
			if parsed, err = p.avro(evolved); err == nil {
				data, err = avro.Marshal(parsed, given.Record)
			}
		}
		if err != nil {
			return err
		}
		head := binary.BigEndian.AppendUint32([]byte{0}, uint32(evolved.ID()))
		return send(ctx, t.Topic, append(head, data...))
	})
}

func (p *plain) avro(schema *srclient.Schema) (avro.Schema, error) {
	cache := &avro.SchemaCache{}
	for _, reference := range schema.References() {
		found, err := p.client.GetSchemaByVersion(reference.Subject, reference.Version)
		if err != nil {
			return nil, err
		}
		if _, err := avro.ParseWithCache(found.Schema(), "", cache); err != nil {
			return nil, err
		}
	}
	return avro.ParseWithCache(schema.Schema(), "", cache)
}

func (p *plain) decode(_ context.Context, format string, value []byte) (found order, err error) {
	if len(value) < 5 || value[0] != 0 {
		return found, fmt.Errorf("no magic byte: %x", value)
	}
	schema, err := p.client.GetSchema(int(binary.BigEndian.Uint32(value[1:5])))
	if err != nil {
		return found, err
	}
	if format == "json" {
		return found, json.Unmarshal(value[5:], &found)
	}
	parsed, err := p.avro(schema)
	if err != nil {
		return found, err
	}
	return found, avro.Unmarshal(parsed, value[5:], &found)
}
