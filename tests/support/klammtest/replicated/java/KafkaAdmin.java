import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.config.ConfigResource;

/**
 * The Java admin client on a cluster of three: creates a topic, changes a config, moves its partition to other brokers,
 * elects the preferred leader and cancels what is not in progress. Prints a line for each step.
 */
public class KafkaAdmin {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        try (Admin admin = Admin.create(settings)) {
            TopicPartition partition = new TopicPartition("java", 0);
            admin.createTopics(List.of(new NewTopic("java", Map.of(0, List.of(0, 1))))).all().get();
            System.out.println("created");
            ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, "java");
            AlterConfigOp change = new AlterConfigOp(new ConfigEntry("retention.ms", "77"), AlterConfigOp.OpType.SET);
            for (int i = 0; i < 6; i++) {  // any broker is asked
                admin.incrementalAlterConfigs(Map.of(topic, List.of(change))).all().get();
            }
            System.out.println("configured");
            admin.alterPartitionReassignments(
                Map.of(partition, Optional.of(new NewPartitionReassignment(List.of(2, 1))))).all().get();
            while (!admin.listPartitionReassignments().reassignments().get().isEmpty()) Thread.sleep(50);
            while (!replicas(admin).equals(List.of(2, 1))) Thread.sleep(50);
            System.out.println("moved");
            admin.electLeaders(ElectionType.PREFERRED, Set.of(partition)).partitions().get();
            while (info(admin).leader().id() != 2) Thread.sleep(50);
            System.out.println("elected " + info(admin).elr());
            try {
                admin.alterPartitionReassignments(Map.of(partition, Optional.empty())).all().get();
            } catch (ExecutionException error) {
                System.out.println(error.getCause().getClass().getSimpleName());
            }
            try {
                admin.alterPartitionReassignments(
                    Map.of(partition, Optional.of(new NewPartitionReassignment(List.of(7))))).all().get();
            } catch (ExecutionException error) {
                System.out.println(error.getCause().getMessage());
            }
            System.out.println(admin.describeLogDirs(List.of(2)).allDescriptions().get().get(2).values().iterator().next()
                .replicaInfos().containsKey(partition));
            System.out.println(new TreeMap<>(admin.describeCluster().nodes().get().stream()
                .collect(java.util.stream.Collectors.toMap(n -> n.id(), n -> n.host()))).keySet());
        }
    }

    private static TopicPartitionInfo info(Admin admin) throws Exception {
        TopicDescription found = admin.describeTopics(List.of("java")).allTopicNames().get().get("java");
        return found.partitions().get(0);
    }

    private static List<Integer> replicas(Admin admin) throws Exception {
        return info(admin).replicas().stream().map(node -> node.id()).toList();
    }
}
