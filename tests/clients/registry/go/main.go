// Registry clients in Go: `registry-client ORDERS.json`, as franz-go or as srclient.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type texts struct {
	Type     string `json:"type"`
	Topic    string `json:"topic"`
	LineName string `json:"line_name"`
	Line     string `json:"line"`
	Order    string `json:"order"`
	Evolved  string `json:"evolved"`
	Refused  string `json:"refused"`
}

var given struct {
	Client       string           `json:"client"`
	Mode         string           `json:"mode"`
	Registry     string           `json:"registry"`
	Bootstrap    string           `json:"bootstrap"`
	Incompatible string           `json:"incompatible"`
	Descriptors  []byte           `json:"descriptors"`
	Record       order            `json:"record"`
	Formats      map[string]texts `json:"formats"`
	Topics       []struct {
		Name   string `json:"name"`
		Format string `json:"format"`
	} `json:"topics"`
}

type line struct {
	Sku   string `json:"sku" avro:"sku"`
	Count int    `json:"count" avro:"count"`
}

type order struct {
	ID       int64   `json:"id" avro:"id"`
	Note     string  `json:"note" avro:"note"`
	Amount   float64 `json:"amount" avro:"amount"`
	Lines    []line  `json:"lines" avro:"lines"`
	Currency string  `json:"currency" avro:"currency"`
}

// client is what each of the two libraries does with the orders.
type client interface {
	work(ctx context.Context, name string, t texts)
	decode(ctx context.Context, format string, value []byte) (order, error)
}

func main() {
	data, err := os.ReadFile(os.Args[1])
	if err == nil {
		err = json.Unmarshal(data, &given)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	var c client
	if given.Client == "srclient" {
		c = newSrclient()
	} else {
		c = newFranz()
	}
	if given.Mode == "write" {
		for name, t := range given.Formats {
			c.work(ctx, name, t)
		}
		return
	}
	for _, topic := range given.Topics {
		answer := map[string]any{"topic": topic.Name, "problem": nil, "record": nil}
		value, err := receive(ctx, topic.Name)
		if err == nil {
			var found order
			if found, err = c.decode(ctx, topic.Format, value); err == nil {
				answer["record"] = found
			}
		}
		if err != nil {
			answer["problem"] = err.Error()
		}
		print(answer)
	}
}

func print(answer map[string]any) {
	data, err := json.Marshal(answer)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(data))
}

func feature(name string, call func() error) {
	answer := map[string]any{"feature": name, "problem": nil}
	if err := call(); err != nil {
		answer["problem"] = err.Error()
	}
	print(answer)
}

// told returns an error unless an answer has the code and the text.
func told(err error, code, wantedCode int, text string) error {
	if err == nil {
		return fmt.Errorf("it was accepted, not refused with %d", wantedCode)
	}
	if code != wantedCode || !strings.Contains(err.Error(), text) {
		return fmt.Errorf("code %d: %w, not %d: %s", code, err, wantedCode, text)
	}
	return nil
}

func wanted(what string, ok bool, found any) error {
	if ok {
		return nil
	}
	return fmt.Errorf("%s: %v", what, found)
}

func send(ctx context.Context, topic string, value []byte) error {
	producer, err := kgo.NewClient(kgo.SeedBrokers(given.Bootstrap))
	if err != nil {
		return err
	}
	defer producer.Close()
	return producer.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: value}).FirstErr()
}

func receive(ctx context.Context, topic string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	consumer, err := kgo.NewClient(kgo.SeedBrokers(given.Bootstrap), kgo.ConsumePartitions(
		map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	for {
		fetches := consumer.PollFetches(ctx)
		if records := fetches.Records(); len(records) > 0 {
			return records[0].Value, nil
		}
		if err := fetches.Err0(); err != nil {
			return nil, err
		}
	}
}
