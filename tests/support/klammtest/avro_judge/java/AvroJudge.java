import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.avro.Conversion;
import org.apache.avro.Conversions;
import org.apache.avro.LogicalType;
import org.apache.avro.Resolver;
import org.apache.avro.Schema;
import org.apache.avro.SchemaCompatibility;
import org.apache.avro.data.TimeConversions;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericEnumSymbol;
import org.apache.avro.generic.GenericFixed;
import org.apache.avro.generic.IndexedRecord;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;

/**
 * Answers, by Apache Avro, one line of JSON for each line of JSON on stdin: {"writer": text, "reader": text, "values": [value, ...],
 * "payloads": [hex, ...]}. `values` are written with the writer's schema; they and `payloads` are read with the reader's.
 *
 * <p>The answer has `writer_text` and `reader_text`, each schema as Java prints it, or `writer_error` and `reader_error`.
 *
 * <p>A value is its schema's: numbers as they are stored; float and double their bits in hex; bytes and fixed in hex; an enum's symbol;
 * a map as pairs [key, value]; a record as its fields in order; a union as [branch, value]. In what is read, a logical type that has a
 * class in Java is an object of one name: instant, local, date, time, decimal, uuid.
 */
public final class AvroJudge {
    private static final JsonNodeFactory NODES = JsonNodeFactory.instance;
    private static final GenericData PLAIN = new GenericData();
    private static final GenericData LOGICAL = new GenericData();

    static {
        LOGICAL.addLogicalTypeConversion(new Conversions.DecimalConversion());
        LOGICAL.addLogicalTypeConversion(new Conversions.UUIDConversion());
        LOGICAL.addLogicalTypeConversion(new TimeConversions.DateConversion());
        LOGICAL.addLogicalTypeConversion(new TimeConversions.TimeMillisConversion());
        LOGICAL.addLogicalTypeConversion(new TimeConversions.TimeMicrosConversion());
        LOGICAL.addLogicalTypeConversion(new TimeConversions.TimestampMillisConversion());
        LOGICAL.addLogicalTypeConversion(new TimeConversions.TimestampMicrosConversion());
        LOGICAL.addLogicalTypeConversion(new TimeConversions.TimestampNanosConversion());
        LOGICAL.addLogicalTypeConversion(new TimeConversions.LocalTimestampMillisConversion());
        LOGICAL.addLogicalTypeConversion(new TimeConversions.LocalTimestampMicrosConversion());
        LOGICAL.addLogicalTypeConversion(new TimeConversions.LocalTimestampNanosConversion());
    }

    private AvroJudge() {}

    public static void main(String[] arguments) throws IOException {
        ObjectMapper json = new ObjectMapper();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        BufferedWriter out = new BufferedWriter(new OutputStreamWriter(System.out, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.write(json.writeValueAsString(answer(json.readTree(line))));
            out.newLine();
            if (!in.ready()) {
                out.flush();
            }
        }
        out.flush();
    }

    private static ObjectNode answer(JsonNode question) {
        ObjectNode answer = NODES.objectNode();
        Schema writer = parse(question.get("writer").textValue(), answer, "writer_error");
        Schema reader = parse(question.get("reader").textValue(), answer, "reader_error");
        List<byte[]> payloads = new ArrayList<>();
        if (writer != null) {
            ArrayNode bytes = answer.putArray("bytes");
            for (JsonNode value : question.get("values")) {
                byte[] written = write(writer, value, bytes);
                if (written != null) {
                    payloads.add(written);
                }
            }
        }
        if (writer == null || reader == null) {
            return answer;
        }
        for (JsonNode payload : question.get("payloads")) {
            payloads.add(fromHex(payload.textValue()));
        }
        answer.put("compatible", compatible(reader, writer));
        answer.put("resolves", resolves(reader, writer));
        ArrayNode read = answer.putArray("read");
        for (byte[] payload : payloads) {
            read.add(read(writer, reader, payload));
        }
        return answer;
    }

    private static Schema parse(String text, ObjectNode answer, String problem) {
        try {
            Schema schema = new Schema.Parser().parse(text);
            answer.put(problem.replace("error", "text"), print(schema));
            return schema;
        } catch (RuntimeException | StackOverflowError error) {
            answer.put(problem, String.valueOf(error));
            return null;
        }
    }

    /** Null where Java cannot print it: a property is null. */
    private static String print(Schema schema) {
        try {
            return schema.toString();
        } catch (NullPointerException error) {
            return null;
        }
    }

    private static boolean compatible(Schema reader, Schema writer) {
        return SchemaCompatibility.checkReaderWriterCompatibility(reader, writer).getType()
                == SchemaCompatibility.SchemaCompatibilityType.COMPATIBLE;
    }

    private static boolean resolves(Schema reader, Schema writer) {
        try {
            Resolver.Action action = Resolver.resolve(writer, Schema.applyAliases(writer, reader), PLAIN);
            return whole(action, Collections.newSetFromMap(new IdentityHashMap<>()));
        } catch (RuntimeException error) {
            return false;
        }
    }

    /** Whether every value of the writer is read, as far as the resolver knows before it sees one. */
    private static boolean whole(Resolver.Action action, Set<Resolver.Action> seen) {
        if (action == null || !seen.add(action)) {
            return true;
        }
        if (action instanceof Resolver.ErrorAction) {
            return false;
        }
        if (action instanceof Resolver.Container) {
            return whole(((Resolver.Container) action).elementAction, seen);
        }
        if (action instanceof Resolver.ReaderUnion) {
            return whole(((Resolver.ReaderUnion) action).actualAction, seen);
        }
        Resolver.Action[] parts = {};
        if (action instanceof Resolver.WriterUnion) {
            parts = ((Resolver.WriterUnion) action).actions;
        } else if (action instanceof Resolver.RecordAdjust) {
            parts = ((Resolver.RecordAdjust) action).fieldActions;
        } else if (action instanceof Resolver.EnumAdjust) {
            for (int place : ((Resolver.EnumAdjust) action).adjustments) {
                if (place < 0) {
                    return false;
                }
            }
        }
        for (Resolver.Action part : parts) {
            if (!whole(part, seen)) {
                return false;
            }
        }
        return true;
    }

    private static byte[] write(Schema schema, JsonNode value, ArrayNode bytes) {
        try {
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(out, null);
            new GenericDatumWriter<Object>(schema, PLAIN).write(datum(schema, value), encoder);
            encoder.flush();
            bytes.add(toHex(out.toByteArray()));
            return out.toByteArray();
        } catch (IOException | RuntimeException error) {
            bytes.addObject().put("error", String.valueOf(error));
            return null;
        }
    }

    private static ObjectNode read(Schema writer, Schema reader, byte[] payload) {
        ObjectNode read = NODES.objectNode();
        Object stored;
        try {
            stored = read(writer, reader, payload, PLAIN);
            read.set("stored", canonical(reader, stored, stored));
        } catch (IOException | RuntimeException | StackOverflowError error) {
            return read.put("error", String.valueOf(error));
        }
        try {
            read.set("value", canonical(reader, stored, read(writer, reader, payload, LOGICAL)));
        } catch (IOException | RuntimeException error) {
            read.put("conversion_error", String.valueOf(error));
            read.set("value", canonical(reader, stored, null));
        }
        return read;
    }

    private static Object read(Schema writer, Schema reader, byte[] payload, GenericData data) throws IOException {
        BinaryDecoder decoder = DecoderFactory.get().binaryDecoder(payload, null);
        Object value = new GenericDatumReader<Object>(writer, reader, data).read(null, decoder);
        if (!decoder.isEnd()) {
            throw new IOException("bytes left over after the payload");
        }
        return value;
    }

    /** The datum of a value in the form of the class comment. */
    private static Object datum(Schema schema, JsonNode value) {
        switch (schema.getType()) {
            case NULL:
                return null;
            case BOOLEAN:
                return value.booleanValue();
            case INT:
                return value.intValue();
            case LONG:
                return value.longValue();
            case FLOAT:
                return Float.intBitsToFloat(Integer.parseUnsignedInt(value.textValue(), 16));
            case DOUBLE:
                return Double.longBitsToDouble(Long.parseUnsignedLong(value.textValue(), 16));
            case BYTES:
                return ByteBuffer.wrap(fromHex(value.textValue()));
            case FIXED:
                return new GenericData.Fixed(schema, fromHex(value.textValue()));
            case STRING:
                return value.textValue();
            case ENUM:
                return new GenericData.EnumSymbol(schema, value.textValue());
            case ARRAY:
                List<Object> items = new ArrayList<>();
                value.forEach(item -> items.add(datum(schema.getElementType(), item)));
                return new GenericData.Array<>(schema, items);
            case MAP:
                Map<String, Object> entries = new LinkedHashMap<>();
                value.forEach(pair -> entries.put(pair.get(0).textValue(), datum(schema.getValueType(), pair.get(1))));
                return entries;
            case RECORD:
                GenericData.Record record = new GenericData.Record(schema);
                for (Schema.Field field : schema.getFields()) {
                    record.put(field.pos(), datum(field.schema(), value.get(field.pos())));
                }
                return record;
            case UNION:
                return datum(schema.getTypes().get(value.get(0).intValue()), value.get(1));
            default:
                throw new IllegalArgumentException(String.valueOf(schema));
        }
    }

    /**
     * The form of the class comment: `stored` says the branches of unions, `value` the values. Without a value each leaf is converted
     * alone, and one that has no value in Java is {"unreadable": stored}.
     */
    private static JsonNode canonical(Schema schema, Object stored, Object value) {
        switch (schema.getType()) {
            case ARRAY:
                ArrayNode items = NODES.arrayNode();
                List<?> values = value == null ? null : new ArrayList<>((java.util.Collection<?>) value);
                int at = 0;
                for (Object item : (java.util.Collection<?>) stored) {
                    items.add(canonical(schema.getElementType(), item, values == null ? null : values.get(at++)));
                }
                return items;
            case MAP:
                Map<String, Object> mine = new TreeMap<>();
                ((Map<?, ?>) stored).forEach((key, item) -> mine.put(key.toString(), item));
                Map<String, Object> theirs = new TreeMap<>();
                if (value != null) {
                    ((Map<?, ?>) value).forEach((key, item) -> theirs.put(key.toString(), item));
                }
                ArrayNode pairs = NODES.arrayNode();
                mine.forEach((key, item) ->
                        pairs.addArray().add(key).add(canonical(schema.getValueType(), item, theirs.get(key))));
                return pairs;
            case RECORD:
                ArrayNode fields = NODES.arrayNode();
                for (Schema.Field field : schema.getFields()) {
                    fields.add(canonical(
                            field.schema(),
                            ((IndexedRecord) stored).get(field.pos()),
                            value == null ? null : ((IndexedRecord) value).get(field.pos())));
                }
                return fields;
            case UNION:
                int branch = PLAIN.resolveUnion(schema, stored);
                return NODES.arrayNode().add(branch).add(canonical(schema.getTypes().get(branch), stored, value));
            default:
                return value == null && stored != null ? converted(schema, stored) : leaf(value);
        }
    }

    private static JsonNode converted(Schema schema, Object stored) {
        LogicalType type = schema.getLogicalType();
        Conversion<?> conversion = type == null ? null : LOGICAL.getConversionFor(type);
        if (conversion == null) {
            return leaf(stored);
        }
        try {
            return leaf(Conversions.convertToLogicalType(stored, schema, type, conversion));
        } catch (RuntimeException error) {
            return NODES.objectNode().set("unreadable", leaf(stored));
        }
    }

    private static JsonNode leaf(Object value) {
        if (value == null) {
            return NODES.nullNode();
        } else if (value instanceof Boolean) {
            return NODES.booleanNode((Boolean) value);
        } else if (value instanceof Integer) {
            return NODES.numberNode((Integer) value);
        } else if (value instanceof Long) {
            return NODES.numberNode((Long) value);
        } else if (value instanceof Float) {
            return NODES.textNode(String.format("%08x", Float.floatToIntBits((Float) value)));
        } else if (value instanceof Double) {
            return NODES.textNode(String.format("%016x", Double.doubleToLongBits((Double) value)));
        } else if (value instanceof ByteBuffer) {
            ByteBuffer buffer = ((ByteBuffer) value).duplicate();
            byte[] bytes = new byte[buffer.remaining()];
            buffer.get(bytes);
            return NODES.textNode(toHex(bytes));
        } else if (value instanceof GenericFixed) {
            return NODES.textNode(toHex(((GenericFixed) value).bytes()));
        } else if (value instanceof GenericEnumSymbol || value instanceof CharSequence) {
            return NODES.textNode(value.toString());
        } else if (value instanceof BigDecimal) {
            BigDecimal decimal = (BigDecimal) value;
            return NODES.objectNode().put("decimal", decimal.unscaledValue().toString()).put("scale", decimal.scale());
        } else if (value instanceof java.util.UUID) {
            return NODES.objectNode().put("uuid", value.toString());
        } else if (value instanceof LocalDate) {
            return NODES.objectNode().put("date", ((LocalDate) value).toEpochDay());
        } else if (value instanceof LocalTime) {
            return NODES.objectNode().put("time", ((LocalTime) value).toNanoOfDay());
        } else if (value instanceof LocalDateTime) {
            return NODES.objectNode().put("local", nanos(((LocalDateTime) value).toInstant(ZoneOffset.UTC)));
        } else if (value instanceof Instant) {
            return NODES.objectNode().put("instant", nanos((Instant) value));
        }
        throw new IllegalArgumentException(value.getClass().getName());
    }

    private static String nanos(Instant instant) {
        return BigDecimal.valueOf(instant.getEpochSecond())
                .movePointRight(9)
                .add(BigDecimal.valueOf(instant.getNano()))
                .toPlainString();
    }

    private static String toHex(byte[] bytes) {
        StringBuilder text = new StringBuilder(2 * bytes.length);
        for (byte one : bytes) {
            text.append(Character.forDigit(one >> 4 & 15, 16)).append(Character.forDigit(one & 15, 16));
        }
        return text.toString();
    }

    private static byte[] fromHex(String text) {
        byte[] bytes = new byte[text.length() / 2];
        for (int at = 0; at < bytes.length; at++) {
            bytes[at] = (byte) Integer.parseInt(text.substring(2 * at, 2 * at + 2), 16);
        }
        return bytes;
    }
}
