import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * The Java client behind lines of text.
 *
 * "produce BOOTSTRAP DELIVERY_MS": each line of the input is "topic partition value", each line of the output "value
 * offset" or "value ERROR"; ends when the input ends and all is answered. "consume BOOTSTRAP TOPIC PARTITIONS": lines of
 * "partition offset value", until a line is given.
 */
public class KafkaClient {
    public static void main(String[] args) throws Exception {
        if (args[0].equals("produce")) produce(args[1], args[2]);
        else consume(args[1], args[2], Integer.parseInt(args[3]));
    }

    private static BufferedReader input() {
        return new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
    }

    private static void produce(String bootstrap, String deliveryMs) throws Exception {
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        p.put("acks", "all");
        p.put("enable.idempotence", "true");
        p.put("linger.ms", "5");
        p.put("delivery.timeout.ms", deliveryMs);
        p.put("request.timeout.ms", "10000");
        p.put("max.block.ms", deliveryMs);
        p.put("retry.backoff.ms", "50");
        p.put("reconnect.backoff.max.ms", "500");
        PrintStream out = System.out;
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(p, new StringSerializer(), new StringSerializer())) {
            BufferedReader in = input();
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                String[] parts = line.split(" ");
                String value = parts[2];
                producer.send(
                    new ProducerRecord<>(parts[0], Integer.parseInt(parts[1]), null, value),
                    (metadata, error) -> say(out, value, error == null ? "" + metadata.offset() : name(error)));
            }
        }
    }

    private static String name(Exception error) {
        return error.getClass().getSimpleName();
    }

    private static synchronized void say(PrintStream out, String value, String became) {
        out.println(value + " " + became);
        out.flush();
    }

    private static void consume(String bootstrap, String topic, int partitions) throws Exception {
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        p.put("group.id", "watcher-java");
        p.put("enable.auto.commit", "false");
        p.put("auto.offset.reset", "none");
        p.put("reconnect.backoff.max.ms", "500");
        List<TopicPartition> all = new ArrayList<>();
        for (int n = 0; n < partitions; n++) all.add(new TopicPartition(topic, n));
        BufferedReader in = input();
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(p, new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(all);
            for (TopicPartition tp : all) consumer.seek(tp, 0);
            StringBuilder lines = new StringBuilder();
            while (!in.ready()) {
                lines.setLength(0);
                for (ConsumerRecord<String, String> r : consumer.poll(Duration.ofMillis(200)))
                    lines.append(r.partition()).append(' ').append(r.offset()).append(' ').append(r.value()).append('\n');
                System.out.print(lines);
                System.out.flush();
            }
        }
    }
}
