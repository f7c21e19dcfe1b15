import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.InputStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.ParsedSchema;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.avro.AvroSchema;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.CachedSchemaRegistryClient;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.RestService;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.entities.SchemaReference;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.entities.SchemaString;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.exceptions.RestClientException;
import org.apache.flink.avro.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.avro.shaded.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.avro.shaded.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.flink.avro.shaded.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.flink.avro.shaded.org.apache.avro.Schema;
import org.apache.flink.avro.shaded.org.apache.avro.generic.GenericData;
import org.apache.flink.avro.shaded.org.apache.avro.generic.GenericDatumReader;
import org.apache.flink.avro.shaded.org.apache.avro.generic.GenericDatumWriter;
import org.apache.flink.avro.shaded.org.apache.avro.generic.GenericRecord;
import org.apache.flink.avro.shaded.org.apache.avro.io.DecoderFactory;
import org.apache.flink.avro.shaded.org.apache.avro.io.Encoder;
import org.apache.flink.avro.shaded.org.apache.avro.io.EncoderFactory;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Confluent's own client for Java, as Flink's connector bundles it: {@code java RegistryClient ORDERS.json}. Records are written as
 * Flink's ConfluentSchemaRegistryCoder does: a zero, the id, and Avro's bytes. JSON and Protobuf have no serializers in that jar, so
 * their schemas are only registered, by its RestService.
 */
public final class RegistryClient {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final JsonNode given;
    private final CachedSchemaRegistryClient client;
    private final RestService rest;

    private interface Call {
        void run() throws Exception;
    }

    private RegistryClient(JsonNode given) {
        this.given = given;
        client = open();
        rest = new RestService(text("registry"));
    }

    public static void main(String[] arguments) throws Exception {
        RegistryClient program = new RegistryClient(JSON.readTree(new File(arguments[0])));
        if (program.text("mode").equals("read")) {
            program.read();
            return;
        }
        program.work(program.given.get("formats").get("avro"));
    }

    private String text(String key) {
        return given.get(key).textValue();
    }

    private CachedSchemaRegistryClient open() {
        return new CachedSchemaRegistryClient(text("registry"), 100);
    }

    private static void print(ObjectNode line) throws Exception {
        System.out.println(JSON.writeValueAsString(line));
    }

    private static void feature(String name, Call call) throws Exception {
        ObjectNode line = JSON.createObjectNode().put("feature", name);
        try {
            call.run();
            line.putNull("problem");
        } catch (Exception error) {
            line.put("problem", error + " at " + error.getStackTrace()[0]);
        }
        print(line);
    }

    private static void refused(Call call, int status, int code, String text) throws Exception {
        try {
            call.run();
        } catch (RestClientException error) {
            check(error.getStatus() == status && error.getErrorCode() == code && error.getMessage().contains(text), error);
            return;
        }
        check(false, "it was accepted");
    }

    private static void check(boolean ok, Object found) {
        if (!ok) {
            throw new IllegalStateException(String.valueOf(found));
        }
    }

    private void work(JsonNode texts) throws Exception {
        String topic = texts.get("topic").textValue();
        String subject = topic + "-value";
        String line = topic + "-line";
        String lineText = texts.get("line").textValue();
        List<SchemaReference> references = List.of(new SchemaReference(texts.get("line_name").textValue(), line, 1));
        Map<String, String> resolved = Map.of(references.get(0).getName(), lineText);
        AvroSchema order = new AvroSchema(texts.get("order").textValue(), references, resolved, null);
        AvroSchema evolved = new AvroSchema(texts.get("evolved").textValue(), references, resolved, null);
        AvroSchema wrong = new AvroSchema(texts.get("refused").textValue(), references, resolved, null);
        int[] id = new int[1];
        feature("avro register", () -> {
            client.register(line, new AvroSchema(lineText));
            id[0] = client.register(subject, order);
            check(open().getId(subject, order) == id[0] && open().getVersion(subject, order) == 1, id[0]);
        });
        feature("avro evolve", () -> {
            check(client.testCompatibility(subject, evolved), "incompatible");
            id[0] = client.register(subject, evolved);
            check(client.getAllVersions(subject).equals(List.of(1, 2)), client.getAllVersions(subject));
            check(client.getLatestSchemaMetadata(subject).getId() == id[0], id[0]);
        });
        feature("avro refused", () -> {
            check(!client.testCompatibility(subject, wrong), "compatible");
            check(!client.testCompatibilityVerbose(subject, wrong).isEmpty(), "no messages");
            refused(() -> client.register(subject, wrong), 409, 40901, text("incompatible"));
            refused(() -> rest.registerSchema("{", subject), 422, 42201, "");
        });
        feature("avro by id", () -> {
            ParsedSchema found = open().getSchemaById(id[0]);
            check(found.equals(evolved), found.canonicalString());
            check(open().getAllVersionsById(id[0]).size() == 1, open().getAllVersionsById(id[0]));
            refused(() -> rest.getId(1 << 30), 404, 40403, "Schema 1073741824 not found");
        });
        feature("avro references", () -> {
            SchemaString found = rest.getId(id[0]);
            check(found.getReferences().equals(references), found.getReferences());
            check(rest.getReferencedBy(line, 1).size() == 2, rest.getReferencedBy(line, 1));
            refused(() -> client.deleteSchemaVersion(line, "1"), 422, 42206, "One or more references exist");
        });
        feature("avro config and mode", () -> {
            client.updateCompatibility(subject, "FULL");
            check(client.getCompatibility(subject).equals("FULL"), client.getCompatibility(subject));
            client.deleteCompatibility(subject);
            client.setMode("READONLY", subject);
            refused(() -> open().register(subject, wrong), 422, 42205, "is in read-only mode");
            client.deleteMode(subject);
        });
        feature("avro delete", () -> {
            String other = topic + "-deleted";
            client.register(other, new AvroSchema(lineText));
            check(client.deleteSubject(other).equals(List.of(1)), "soft");
            check(client.deleteSubject(other, true).equals(List.of(1)), "hard");
            refused(() -> open().getAllVersions(other), 404, 40401, "Subject '" + other + "' not found.");
        });
        feature("json register", () -> {
            String schema = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}}}";
            int made = rest.registerSchema(schema, "JSON", List.of(), "java-json").getId();
            check("JSON".equals(rest.getId(made).getSchemaType()), rest.getId(made));
        });
        feature("protobuf register", () -> {
            int made = rest.registerSchema("syntax = \"proto3\"; message A { string b = 1; }", "PROTOBUF", List.of(), "java-proto")
                    .getId();
            check("PROTOBUF".equals(rest.getId(made).getSchemaType()), rest.getId(made));
        });
        feature("avro write", () -> send(topic, encoded(id[0], evolved.rawSchema())));
    }

    private byte[] encoded(int id, Schema schema) throws Exception {
        JsonNode record = given.get("record");
        GenericRecord order = new GenericData.Record(schema);
        order.put("id", record.get("id").longValue());
        order.put("note", record.get("note").textValue());
        order.put("amount", record.get("amount").doubleValue());
        order.put("currency", record.get("currency").textValue());
        List<GenericRecord> lines = new ArrayList<>();
        for (JsonNode one : record.get("lines")) {
            GenericRecord line = new GenericData.Record(schema.getField("lines").schema().getElementType());
            line.put("sku", one.get("sku").textValue());
            line.put("count", one.get("count").intValue());
            lines.add(line);
        }
        order.put("lines", lines);
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        out.write(0);
        out.write(new byte[] {(byte) (id >>> 24), (byte) (id >>> 16), (byte) (id >>> 8), (byte) id});
        Encoder encoder = EncoderFactory.get().directBinaryEncoder(out, null);
        new GenericDatumWriter<GenericRecord>(schema).write(order, encoder);
        return out.toByteArray();
    }

    private void send(String topic, byte[] value) throws Exception {
        Properties config = new Properties();
        config.put("bootstrap.servers", text("bootstrap"));
        config.put("acks", "all");
        try (var producer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.send(new ProducerRecord<>(topic, value)).get();
        }
    }

    private byte[] receive(String topic) {
        Properties config = new Properties();
        config.put("bootstrap.servers", text("bootstrap"));
        try (var consumer = new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(30))) {
                return record.value();
            }
        }
        throw new IllegalStateException("no record");
    }

    private void read() throws Exception {
        for (JsonNode one : given.get("topics")) {
            ObjectNode line = JSON.createObjectNode().put("topic", one.get("name").textValue());
            try {
                line.set("record", decoded(receive(one.get("name").textValue())));
                line.putNull("problem");
            } catch (Exception error) {
                line.putNull("record").put("problem", String.valueOf(error));
            }
            print(line);
        }
    }

    private ObjectNode decoded(byte[] value) throws Exception {
        InputStream in = new ByteArrayInputStream(value);
        check(in.read() == 0, "no magic byte");
        int id = 0;
        for (int i = 0; i < 4; i++) {
            id = id << 8 | in.read();
        }
        ParsedSchema parsed = client.getSchemaById(id);
        Schema schema = ((AvroSchema) parsed).rawSchema();
        GenericRecord order =
                new GenericDatumReader<GenericRecord>(schema).read(null, DecoderFactory.get().directBinaryDecoder(in, null));
        ObjectNode found = JSON.createObjectNode();
        found.put("id", (Long) order.get("id"));
        found.put("note", order.get("note").toString());
        found.put("amount", (Double) order.get("amount"));
        found.put("currency", Optional.ofNullable(order.get("currency")).map(Object::toString).orElse(null));
        ArrayNode lines = found.putArray("lines");
        for (Object each : (List<?>) order.get("lines")) {
            GenericRecord line = (GenericRecord) each;
            lines.addObject().put("sku", line.get("sku").toString()).put("count", (Integer) line.get("count"));
        }
        return found;
    }
}
