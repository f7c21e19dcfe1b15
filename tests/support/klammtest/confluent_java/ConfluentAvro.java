import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.CompatibilityLevel;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.CompatibilityChecker;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.avro.AvroSchema;
import org.apache.flink.avro.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.avro.shaded.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.avro.shaded.com.fasterxml.jackson.databind.node.JsonNodeFactory;
import org.apache.flink.avro.shaded.com.fasterxml.jackson.databind.node.ObjectNode;

/**
 * Answers, by the AvroSchema of Confluent's registry, one line of JSON for each line of JSON on stdin: {"texts": [text, ...]}.
 *
 * <p>The answer's `texts` has for each text {"canonical", "normalized"}, each null where Java fails, or {"error"}. With two texts, the older one first, and no
 * error it has the messages for each level: {"levels": {"BACKWARD": [text, ...], ...}}.
 */
public final class ConfluentAvro {
    private static final JsonNodeFactory NODES = JsonNodeFactory.instance;
    private static final CompatibilityLevel[] LEVELS = {
        CompatibilityLevel.BACKWARD, CompatibilityLevel.FORWARD, CompatibilityLevel.FULL,
    };

    private ConfluentAvro() {}

    public static void main(String[] arguments) throws IOException {
        ObjectMapper json = new ObjectMapper();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        BufferedWriter out = new BufferedWriter(new OutputStreamWriter(System.out, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.write(json.writeValueAsString(answer(json.readTree(line).get("texts"))));
            out.newLine();
            if (!in.ready()) {
                out.flush();
            }
        }
        out.flush();
    }

    private static ObjectNode answer(JsonNode texts) {
        ObjectNode answer = NODES.objectNode();
        var found = answer.putArray("texts");
        AvroSchema[] schemas = new AvroSchema[texts.size()];
        for (int i = 0; i < schemas.length; i++) {
            ObjectNode one = found.addObject();
            try {
                schemas[i] = parsed(texts.get(i).textValue());
            } catch (RuntimeException | StackOverflowError error) {
                one.put("error", String.valueOf(error));
                continue;
            }
            one.put("canonical", text(schemas[i]::canonicalString));
            AvroSchema schema = schemas[i];
            one.put("normalized", text(() -> schema.normalize().canonicalString()));
        }
        if (schemas.length == 2 && schemas[0] != null && schemas[1] != null) {
            ObjectNode levels = answer.putObject("levels");
            for (CompatibilityLevel level : LEVELS) {
                var messages = levels.putArray(level.name);
                try {
                    CompatibilityChecker.checker(level).isCompatible(schemas[1], List.of(schemas[0])).forEach(messages::add);
                } catch (RuntimeException | StackOverflowError error) {
                    messages.add(String.valueOf(error));
                }
            }
        }
        return answer;
    }

    /** Null where Java fails. */
    private static String text(Supplier<String> made) {
        try {
            return made.get();
        } catch (RuntimeException | StackOverflowError error) {
            return null;
        }
    }

    /** As the registry parses a schema that is to be registered. */
    private static AvroSchema parsed(String text) {
        AvroSchema schema = new AvroSchema(text, List.of(), Map.of(), null, true);
        schema.rawSchema();
        return schema;
    }
}
