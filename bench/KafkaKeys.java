// Prints every configuration key of a Kafka broker and of a topic, one a line, for bench/kafka_keys.py:
// scope | name | type | default | valid values | how it changes at run time | internal
// A default that does not exist is null. Valid values: LOW..HIGH (an end may be missing), names, or several of both
// with commas between them.

import java.util.Map;
import java.util.TreeMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.server.config.DynamicBrokerConfig;
import org.apache.kafka.server.config.QuotaConfig;
import org.apache.kafka.storage.internals.log.LogConfig;

public class KafkaKeys {
    private static final Pattern RANGE = Pattern.compile("\\[(-?[0-9.]*),?\\.\\.\\.,?(-?[0-9.]*)\\](?: or (-?[0-9]+))?");
    private static final Pattern NAMES = Pattern.compile("(?:\\(case insensitive\\) )?\\[([A-Za-z0-9_, ]+)\\]");

    public static void main(String[] arguments) {
        Map<String, String> modes = DynamicBrokerConfig.dynamicConfigUpdateModes();
        TreeMap<String, ConfigDef.ConfigKey> broker = new TreeMap<>(AbstractKafkaConfig.CONFIG_DEF.configKeys());
        broker.putAll(QuotaConfig.brokerQuotaConfigs().configKeys());
        print("broker", broker, modes);
        print("topic", new TreeMap<>(LogConfig.configKeys()), Map.of());
    }

    private static void print(String scope, Map<String, ConfigDef.ConfigKey> keys, Map<String, String> modes) {
        for (ConfigDef.ConfigKey key : keys.values()) {
            boolean none = key.defaultValue == null || key.defaultValue == ConfigDef.NO_DEFAULT_VALUE;
            String standard = none ? "null" : ConfigDef.convertToString(key.defaultValue, key.type);
            System.out.println(String.join("|", scope, key.name, key.type.name(), standard,
                valid(String.valueOf(key.validator)), modes.getOrDefault(key.name, ""),
                key.internalConfig ? "internal" : ""));
        }
    }

    private static String valid(String text) {
        Matcher range = RANGE.matcher(text);
        if (range.matches()) {
            String within = range.group(1) + ".." + range.group(2);
            return range.group(3) == null ? within : range.group(3) + "," + within;
        }
        Matcher names = NAMES.matcher(text);
        return names.matches() ? names.group(1).replace(" ", "") : "";
    }
}
